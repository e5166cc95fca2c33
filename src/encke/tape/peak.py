"""What a stretch of code really used: resident memory on the CPU, the allocator's on CUDA.

The tape counts bytes that it keeps; a process also holds what the allocator has not given
back, temporaries, and whatever ran out of sight. `Peak` measures all of it from outside.

glibc keeps freed memory for itself: blocks below its mmap threshold stay in the heap, and
the threshold grows up to 32 MiB as larger blocks are freed. `trim` gives what is free at the
top of each arena back, and `Peak` does that on entry, so that memory freed before does not
hide what is used inside. For figures that repeat, start the process with
`MALLOC_ARENA_MAX=1` (one heap for all threads) and `MALLOC_MMAP_THRESHOLD_=65536` (every
tensor of 64 KiB or more gets pages of its own, which go back when it is freed).
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import weakref
from functools import cache
from pathlib import Path

import torch

from encke.memory import pool

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
#: Written there, it makes the kernel forget the largest resident set so far.
_FORGET_PEAK = "5"
_MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD
_LARGEST_THRESHOLD = 64 << 20  # bytes; larger blocks always get pages of their own


def trim() -> bool:
    """Give freed memory back to the system, where the allocator can; whether it could."""
    returned = pool().trim()
    release = _malloc_trim()
    return bool(returned) | (release is not None and bool(release(0)))


def return_at_once(threshold: int = 65536) -> bool:
    """Give every block of `threshold` bytes or more pages of its own from now on.

    They go back to the system when the block is freed, as with `MALLOC_MMAP_THRESHOLD_` in
    the environment, but from here on and not from the start of the process. Allocating is
    slower then: time steps before. Whether the allocator could; glibc's can.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - raises elsewhere
        if not library.mallopt(_MMAP_THRESHOLD, threshold):
            return False
    except (AttributeError, OSError, TypeError):
        return False
    trim()
    _occupy_heap(library, threshold)
    return True


def _occupy_heap(library: ctypes.CDLL, threshold: int) -> None:
    """Take the free blocks of the heap, which would be used before any new pages are.

    They are not written to, so they cost address space and no memory.
    """
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    size = _LARGEST_THRESHOLD
    while size >= threshold:
        block = library.malloc(size)
        if block is None:
            return
        # The word before a block has its size; the second bit tells pages of its own.
        if ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2:
            library.free(block)
            size //= 2


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def resident() -> int | None:
    """Bytes of this process in memory now; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, AttributeError):
        return None


def resident_peak() -> int | None:
    """The most bytes in memory since the process began, or since a `Peak` was entered."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _reset_mark() -> str:
    """Let the mark start again from what is resident; what peaks can be read from then."""
    try:
        _CLEAR.write_text(_FORGET_PEAK)
    except OSError:
        return "samples" if resident() is not None else "getrusage"
    return "high-water mark"


def _fold_all() -> None:
    """There is one mark for all who measure: let them keep what it says so far."""
    for peak in Peak._running:
        peak._fold()
    for step in list(StepPeak._all):
        step._fold()


def cuda_peak() -> int | None:
    """The allocator's most bytes on the current CUDA device; None if CUDA is not in use."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return int(torch.cuda.max_memory_allocated())


class StepPeak:
    """Gives, each time it is called, the most memory in use since it was called last.

    On the CPU the resident set of the process, where the kernel tells its high-water mark;
    otherwise what is resident when it is called.

    device  "cpu", or "cuda" for torch's allocator on that device
    """

    _all: weakref.WeakSet[StepPeak] = weakref.WeakSet()  # noqa: RUF012 - every one that lives

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = torch.device(device)
        self._mark = 0
        self()
        StepPeak._all.add(self)

    def __call__(self) -> int:
        _fold_all()
        found, self._mark = self._mark, 0
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif _reset_mark() != "high-water mark":
            return resident() or found
        return found

    def _fold(self) -> None:
        """Take in the most that was seen since the mark was reset last."""
        if self._device.type == "cuda":
            self._mark = max(self._mark, int(torch.cuda.max_memory_allocated(self._device)))
        else:
            self._mark = max(self._mark, resident_peak() or 0)


class Peak:
    """Measures the most memory in use at once inside the `with` block, above that on entry.

    device   "cpu" for the resident set, "cuda" for torch's allocator on that device
    every    seconds between the samples of the curve
    bytes    the peak, above the value on entry
    curve    (seconds since entry, bytes above entry), sampled
    how      what `bytes` was read from: "high-water mark", "samples", "allocator", or
             "getrusage", which sees only what exceeds every earlier peak of the process

    Measurements may be nested. On the CPU the mark and the samples count pages, so a tensor
    that is allocated but never written to counts nothing.

    >>> with Peak() as peak:
    ...     x = torch.ones(8 << 20)
    ...     del x
    >>> peak.bytes >= 30 << 20
    True
    """

    _running: list[Peak] = []  # noqa: RUF012 - those entered and not left, outermost first

    def __init__(self, device: str | torch.device = "cpu", *, every: float = 0.002) -> None:
        self._device = torch.device(device)
        self._every = every
        self.bytes = 0
        self.curve: list[tuple[float, int]] = []
        self.how = ""
        self._start = 0
        self._mark = 0
        self._began = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Peak:
        self.bytes, self.curve, self._mark = 0, [], 0
        _fold_all()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self.how = "allocator"
        else:
            trim()
            self.how = _reset_mark()
        Peak._running.append(self)
        self._start = self._now() or resident_peak() or 0
        self._began = time.perf_counter()
        if self._now() is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._sample, name="peak", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._note()
        self._fold()
        Peak._running.remove(self)
        samples = max((count for _, count in self.curve), default=0)
        self.bytes = max(0, self._mark - self._start, samples)

    def _fold(self) -> None:
        """Take in the most that the system has seen since the mark was reset last."""
        if self._device.type == "cuda":
            self._mark = max(self._mark, torch.cuda.max_memory_allocated(self._device))
        elif self.how != "samples":
            self._mark = max(self._mark, resident_peak() or 0)

    def _now(self) -> int | None:
        if self._device.type == "cuda":
            return int(torch.cuda.memory_allocated(self._device))
        return resident()

    def _note(self) -> None:
        now = self._now()
        if now is not None:
            self.curve.append((time.perf_counter() - self._began, now - self._start))

    def _sample(self) -> None:
        self._note()
        while not self._stop.wait(self._every):
            self._note()

// Every float32 bit pattern through `fixed` and back, compared in double precision.
//
//     exhaustive ERROR KIND STEP0 STEP1 LIMIT0 LIMIT1 SEED SPARSE STRIDE
//
// SPARSE 1 makes every second value zero; STRIDE 1 takes every pattern. Prints the number
// of patterns and of violations; benchmarks/exhaustive.py supplies the arguments.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "encke.h"

int main(int argc, char** argv) {
    if (argc != 10) return 2;
    const double error = std::atof(argv[1]);
    encke_quantiser q{};
    q.kind = std::atoi(argv[2]);
    q.step[0] = std::strtod(argv[3], nullptr);
    q.step[1] = std::strtod(argv[4], nullptr);
    q.limit[0] = std::strtod(argv[5], nullptr);
    q.limit[1] = std::strtod(argv[6], nullptr);
    q.seed = std::strtoull(argv[7], nullptr, 10);
    const bool sparse = std::atoi(argv[8]) != 0;
    const uint64_t stride = std::strtoull(argv[9], nullptr, 10);
    constexpr int64_t kAtOnce = 1 << 18;
    std::vector<uint32_t> x(kAtOnce), y(kAtOnce);
    std::vector<uint8_t> payload;
    uint64_t patterns = 0, violations = 0;
    for (uint64_t first = 0; first < uint64_t{1} << 32; first += kAtOnce * stride) {
        int64_t n = 0;
        for (uint64_t p = first; n < kAtOnce && p < uint64_t{1} << 32; p += stride)
            x[n] = sparse && n % 2 ? 0u : static_cast<uint32_t>(p), ++n;
        int64_t size = encke_fixed_encode(x.data(), n, ENCKE_F32, &q);
        if (size < 0) return 3;
        payload.resize(size);
        encke_take(payload.data());
        if (encke_fixed_decode(payload.data(), size, y.data(), n, ENCKE_F32)) return 3;
        for (int64_t i = 0; i < n; ++i) {
            float before, after;
            std::memcpy(&before, &x[i], 4);
            std::memcpy(&after, &y[i], 4);
            bool good;
            if (std::isfinite(before)) {
                good = std::fabs(static_cast<double>(after) - static_cast<double>(before)) <=
                       error;
                good &= before != 0 || after == 0;
                if (q.kind != ENCKE_PLAIN) good &= before == 0 || after != 0;
            } else {
                good = x[i] == y[i];
            }
            violations += !good;
        }
        patterns += static_cast<uint64_t>(n);
    }
    std::printf("%llu %llu\n", static_cast<unsigned long long>(patterns),
                static_cast<unsigned long long>(violations));
    return 0;
}

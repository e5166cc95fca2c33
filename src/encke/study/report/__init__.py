"""The report of a study: one self-contained HTML page.

It begins with the answer (what was saved at what cost, which setting to use and why) and goes
on to pictures with the tables behind them. `docs/report.md` explains how to read it.
"""

from encke.study.report.page import page

__all__ = ["page"]

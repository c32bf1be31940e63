"""Reports made up for the tests of their forms: every outcome, every side, and texts that have to be escaped."""

from __future__ import annotations

from conformance.results import Consumer, Outcome, Report, Result, Rule, Side

NASTY = "it said <script>alert('x')</script> & \"more\" | even `this` _and_ [that]"

RULES = (
    Rule(
        "protocol.keywords",
        "protocol",
        "All four keywords are taken.",
        "the standard, __dlpack__",
        "Ask with all four.",
    ),
    Rule("protocol.stream-zero", "protocol", "Stream 0 is refused.", "the standard, stream", "Ask with 0."),
    Rule("data.address", "data", "The address is the array's <own>.", "a promise | of ours", "Compare the addresses."),
)
CONSUMERS = (
    Consumer("reference", "1.0", Side.BOTH),
    Consumer("torch", "2.13.0", Side.CPU),
    Consumer("torch", "2.13.0", Side.CUDA, "needs a GPU"),
    Consumer("mlx", "0.32", Side.CPU),
)


def make(producer: str = "dlwrap", **verdicts: Outcome) -> Report:
    """Make a report; `verdicts` are what the reference says of the first two rules."""
    results = (
        Result("protocol.keywords", "reference", verdicts.get("keywords", Outcome.PASS), ""),
        Result("protocol.stream-zero", "reference", verdicts.get("stream_zero", Outcome.PASS), ""),
        Result("data.address", "reference", Outcome.PASS),
        Result("data.address", "torch (CPU view)", Outcome.KNOWN_FAULT, "torch 2.13 does not look"),
        Result("data.address", "torch (CUDA)", Outcome.NOT_RUN, "needs a GPU"),
        Result("data.address", "mlx (CPU view)", Outcome.FAIL, NASTY),
        Result("protocol.keywords", "mlx (CPU view)", Outcome.NOT_APPLICABLE, "mlx asks with none"),
    )
    return Report(
        date="2026-12-02T09:18:22+00:00",
        driver="simulated driver",
        producer=producer,
        hardware={"gpu": "none: simulated", "machine": "x86_64", "processors": 2},
        versions={"python": "3.11.7", "torch": "2.13.0"},
        rules=RULES,
        consumers=CONSUMERS,
        results=results,
    )


def all_pass() -> Report:
    """Make a report in which nothing is unexpected."""
    report = make()
    kept = tuple(result for result in report.results if result.outcome is not Outcome.FAIL)
    return Report(**{**vars(report), "results": kept})

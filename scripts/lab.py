"""What the measuring scripts share: running a program, and looking for a limit."""

import json
import pathlib
import statistics
import subprocess
import time

START = time.monotonic()
GIB = 1 << 30


def say(text):
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


class Lab:
    """Runs a program with the arguments common to all runs; reports and logs go to `out`."""

    def __init__(self, program, out, common):
        self.program, self.out, self.common = program, pathlib.Path(out), common
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self, name, *arguments, limit=240):
        """Runs the program with `--report`; returns whether it ended well, and the report, None if there is none."""
        report, log = self.out / f"{name}.json", self.out / f"{name}.log"
        report.unlink(missing_ok=True)
        command = [self.program, *map(str, [*arguments, *self.common]), "--report", str(report)]
        try:
            with open(log, "w") as file:
                good = subprocess.run(command, stdout=file, stderr=file, timeout=limit).returncode == 0
        except subprocess.TimeoutExpired:
            good = False
        return good, json.loads(report.read_text()) if report.exists() else None

    def log(self, name):
        return (self.out / f"{name}.log").read_text()

    def save(self, name, part):
        (self.out / f"{name}.part.json").write_text(json.dumps(part, indent=1))


def smallest(low, high, step, completes):
    """The smallest number between two that completes, to within `step`; `high` is known to."""
    while high - low > step:
        middle = round((low + high) / 2, 2)
        low, high = (low, middle) if completes(middle) else (middle, high)
    return low, high


def median_ms(steps, skipped=0.25):
    """The median time of steps, the first share of them left out as warm-up."""
    return statistics.median(step["step_ms"] for step in steps[int(len(steps) * skipped) :])

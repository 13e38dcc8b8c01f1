"""One run of one workload for one product, in the product's environment: `python -m bench.one PRODUCT VARIANT
WORKLOAD CASE N`. The last line printed is the row, as JSON.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import psycopg

from bench.adapter import load
from bench.service import Failed
from bench.workloads import WORKLOADS


def main(name: str, variant: str, work: str, case: str, n: str) -> None:
    workload = next(one for one in WORKLOADS if one.name == work)
    product = load(name, variant)
    row = {
        "version": product.version(),
        "python": platform.python_version(),
        "settings": product.settings.get(variant, variant),
        "n": int(n),
    }
    try:
        if work in product.own:
            row |= product.own[work](case, int(n))
        else:
            row |= workload.run(product, case, int(n))
    except (Failed, psycopg.Error, subprocess.CalledProcessError) as problem:
        row["failed"] = str(problem)
    print(json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])

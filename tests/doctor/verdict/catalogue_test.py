#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every row of the catalogue has a fixture that earns its verdict and a near miss that does not.

Usage: catalogue_test.py VERDICTS.DEF NOTES. The other tests of the doctor and of the builder left their notes in that
folder (tests/verdict_notes.h), and run before this one."""

import pathlib
import re
import sys


def main() -> int:
    catalogue = re.findall(r"^MICA_VERDICT\(([A-Z_0-9]+),", pathlib.Path(sys.argv[1]).read_text(), re.M)
    covered = {code for notes in pathlib.Path(sys.argv[2]).glob("*") for code in notes.read_text().split()}
    missing = [code for code in catalogue if code not in covered]
    strangers = sorted(covered - set(catalogue))
    print(f"{len(catalogue)} verdicts, {len(catalogue) - len(missing)} with a fixture and a near miss")
    for code in missing:
        print(f"{code} has no fixture that earns it, or no near miss")
    for code in strangers:
        print(f"{code} is tested and is not in the catalogue")
    return 1 if missing or strangers or len(catalogue) < 50 else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main())

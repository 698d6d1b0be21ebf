#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says what `pip install` would download, and how large it is, before it is done.

Usage: pip_plan.py <arguments of pip install>. Exit status: pip's; nothing is downloaded but descriptions.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request


def size_of(url):
    """Bytes, or None where the server does not say."""
    if not url.startswith("http"):
        return 0
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers["Content-Length"])
    except (urllib.error.URLError, OSError, TypeError):
        return None


def main(arguments):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet"]
    planned = subprocess.run([*pip, "--report", "-", *arguments], capture_output=True, text=True)
    if planned.returncode:
        print(planned.stderr.strip().splitlines()[-1] if planned.stderr.strip() else "pip said nothing")
        return planned.returncode
    packages = []
    for item in json.loads(planned.stdout)["install"]:
        size = size_of(item["download_info"]["url"])
        packages.append((size or 0, f"{item['metadata']['name']} {item['metadata']['version']}", size is None))
    packages.sort(reverse=True)
    total = sum(size for size, _, _ in packages)
    known = "at least " if any(unknown for _, _, unknown in packages) else ""
    largest = ", ".join(f"{name} ({size / 1e6:.0f} MB)" for size, name, _ in packages[:4])
    print(f"{len(packages)} packages, {known}{total / 1e6:.0f} MB to download; the largest: {largest or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

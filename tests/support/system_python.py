# SPDX-License-Identifier: Apache-2.0
"""Packages of the distribution, where python3 on the PATH is another one."""

import importlib.util
import os
import sys


def require(*modules, pythons=(), how=""):
    """Goes on where all of these can be imported: here, or by one of `pythons` or the system's own python3, with which the script
    then begins anew. Elsewhere ends it with status 77, which ctest reports as skipped, and says how to install them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    # Each is tried once. A virtual environment's python is a link to another one, so that only its own path tells it apart.
    tried = os.environ.get("TRIED_PYTHONS", "").split(":") + [sys.executable]
    for python in [*pythons, "/usr/bin/python3"]:
        if not os.path.exists(python) or python in tried:
            continue
        os.environ["TRIED_PYTHONS"] = ":".join(tried)
        os.execv(python, [python] + sys.argv)
    print(f"{missing[0]} is not installed; install it with: {how or 'apt-get install python3-' + missing[0]}")
    sys.exit(77)

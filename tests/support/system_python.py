# SPDX-License-Identifier: Apache-2.0
"""Packages of the distribution, where python3 on the PATH is another one."""

import importlib.util
import os
import sys


def require(*modules, how=""):
    """Goes on where all of these can be imported: here, or by the system's own python3, with which the script then begins
    anew. Elsewhere ends it with status 77, which ctest reports as skipped, and says how to install them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system] + sys.argv)
    print(f"{missing[0]} is not installed; install it with: {how or 'apt-get install python3-' + missing[0]}")
    sys.exit(77)

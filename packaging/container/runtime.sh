#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# runtime.sh: the second stage of an image, as root, in the folder that build.sh has made: installs the packages that it lists. Those
# that the image has already, NVIDIA's libraries, stay as they are: they are on hold, and apt would refuse a newer version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
apt-get update
DEBIAN_FRONTEND=noninteractive xargs -a <(grep -vxF "$(apt-mark showhold)" packages) apt-get install -y --no-install-recommends
rm -rf /var/lib/apt/lists/*
bin/llampi --version

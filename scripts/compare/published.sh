#!/usr/bin/env bash
# The tables of FlexGen and H2O on a T4: published, simulated by FlexGen's own arithmetic, and what Weft's best policies
# are predicted to reach on the same card. Nothing runs on a GPU. Needs a build: scripts/quickstart.sh makes one.
set -euo pipefail
cd "$(dirname "$0")/../.."
weft=build/release/weft
[ -x "$weft" ] || { echo "published: $weft is missing; build it first, e.g. with scripts/quickstart.sh" >&2; exit 2; }
exec "$weft" plan --published configs/published "$@"

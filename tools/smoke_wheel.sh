#!/usr/bin/env bash
# Builds the wheel, installs it alone in a fresh environment, and runs the command away from the checkout.
set -euo pipefail
python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$root" && readlink -f "$(dirname "$python")")/$(basename "$python")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

(cd "$root" && "$python" tools/tracked.py)  # or cp fails below with a line that explains nothing

# Built from what git would hand out, so that a file that was never added is missed here too.
mkdir "$scratch/source"
(cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$scratch/source")
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch" "$scratch/source"
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check "$scratch"/*.whl

cd "$scratch"
for file in $(cd "$root" && git ls-files 'store/*.sql' '*/py.typed'); do
    test -f "$("$scratch/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/$file" ||
        { echo "the wheel lacks $file" >&2; exit 1; }
done
"$scratch/venv/bin/recall" --version
"$scratch/venv/bin/recall" --help >/dev/null
"$scratch/venv/bin/recall" help exit-codes --json >/dev/null
"$scratch/venv/bin/recall" completions bash | bash -n
"$scratch/venv/bin/python" -c 'import recall_cli; assert recall_cli.RecallError'
if "$scratch/venv/bin/recall" --help | grep -q '^  demo '; then "$scratch/venv/bin/recall" demo >/dev/null; fi
echo "wheel: ok"

#!/usr/bin/env bash
# Makes the peers' environments for benchmarks/speed, each in a virtual environment of its own:
#
#     benchmarks/peers/make_env.sh DIR [PEER ...]
#
# Peers: fedlab pfl flgo appfl fluke flsim flower (none named: all). PYTHON is the interpreter (default: python3.11),
# TORCH the version of PyTorch for all of them, the one Offbeat is measured with (default: 2.13.0).
# A peer that is there already is left as it is. Ends with status 1 if one could not be made, after trying the others.
set -u
folder=${1:?"usage: make_env.sh DIR [PEER ...]"}
shift
python=${PYTHON:-python3.11}
torch=${TORCH:-2.13.0}
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- fedlab pfl flgo appfl fluke flsim flower

failed=""
for peer in "$@"; do
    if [ ! -f "$here/requirements/$peer.txt" ]; then
        echo "$peer: there is no such peer; choose from: $(basename -s .txt "$here"/requirements/*.txt | xargs)" >&2
        failed="$failed $peer"
    elif [ -f "$folder/$peer/made" ]; then
        echo "$peer: is there already"
    elif "$python" -m venv --clear "$folder/$peer" &&
        "$folder/$peer/bin/pip" install --quiet "torch==$torch" --requirement "$here/requirements/$peer.txt"; then
        touch "$folder/$peer/made"
        echo "$peer: made"
    else
        echo "$peer: could not be made" >&2
        failed="$failed $peer"
    fi
done
[ -z "$failed" ] || { echo "missing:$failed" >&2; exit 1; }

#!/usr/bin/env bash
# Lint the Containerfile, build it, and make a run of a server and two sites in containers.
#
#     BASE=IMAGE BUILD_OPTIONS='--build-arg TORCH=…' deploy/try/container.sh
#
# BASE is a local image or one that can be pulled; without it, the file's own. The containers have no network but a
# loopback that they share, a read-only root, no capabilities, and may write to their volumes and to /tmp.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
file=$root/deploy/container/Containerfile

if command -v hadolint >/dev/null; then
    hadolint "$file"
    echo "PASSED hadolint"
else
    echo "SKIPPED hadolint: not installed"
fi
if ! command -v buildah >/dev/null || ! command -v podman >/dev/null; then
    echo "SKIPPED the image: buildah and podman are not both installed"
    exit 0
fi

image=localhost/offbeat-try
read -ra options <<<"${BUILD_OPTIONS:-} ${BASE:+--build-arg BASE=$BASE}"
if ! buildah bud --isolation chroot --format docker "${options[@]}" -f "$file" -t $image "$root" >/tmp/offbeat-build.$$ 2>&1; then
    tail -n 30 /tmp/offbeat-build.$$
    rm /tmp/offbeat-build.$$
    echo "FAILED the build"
    exit 1
fi
rm /tmp/offbeat-build.$$
echo "PASSED the build: $(podman image inspect --format '{{.Size}}' $image) bytes"

names=(offbeat-try-server offbeat-try-north offbeat-try-south)
clean() {
    podman rm --force --time 1 "${names[@]}" >/dev/null 2>&1 || true
    podman volume rm --force "${names[@]}" >/dev/null 2>&1 || true
}
trap clean EXIT
clean
read -ra run_options <<<"${RUN_OPTIONS:-}"
safe=(--read-only --cap-drop all --security-opt no-new-privileges "${run_options[@]}")

podman run --rm "${safe[@]}" --network none $image --version
uid=$(podman run --rm "${safe[@]}" --network none --entrypoint /opt/offbeat/bin/python $image -c 'import os; print(os.getuid())')
[ "$uid" = 10001 ] || { echo "FAILED: the user is $uid"; exit 1; }
if podman run --rm "${safe[@]}" --network none --entrypoint touch $image /opt/offbeat/x 2>/dev/null; then
    echo "FAILED: the root can be written to"
    exit 1
fi

podman run --detach --name offbeat-try-server "${safe[@]}" --network none -v offbeat-try-server:/state \
    --env OFFBEAT_HEALTH=http://127.0.0.1:8080/healthz $image \
    serve digits --state /state --sites 2 --dashboard 127.0.0.1:8080 --set 'until={versions: 30}' >/dev/null
half=0
for site in north south; do
    half=$((half + 1))
    podman run --detach --name offbeat-try-$site "${safe[@]}" --network container:offbeat-try-server \
        -v offbeat-try-$site:/state $image join 127.0.0.1:7117 --name $site --data digits:$half/2 --state /state \
        --set site.min_step_seconds=0.02 >/dev/null
done
until podman logs offbeat-try-north 2>&1 | grep -q "an update was accepted"; do
    [ "$(podman inspect --format '{{.State.Status}}' offbeat-try-server)" = running ] || break
    sleep 0.5
done
podman stop --time 60 offbeat-try-south >/dev/null
code=$(podman inspect --format '{{.State.ExitCode}}' offbeat-try-south)
[ "$code" = 130 ] || { echo "FAILED: a site that is stopped has ended with exit code $code"; exit 1; }
podman start offbeat-try-south >/dev/null # and goes on
podman healthcheck run offbeat-try-server || { echo "FAILED: the server is not healthy"; exit 1; }
for name in "${names[@]}"; do
    code=$(podman wait $name)
    if [ "$code" != 0 ]; then
        podman logs $name | tail -n 20
        echo "FAILED: $name has ended with exit code $code"
        exit 1
    fi
    written=$(podman diff $name | grep -v -E '^C /(etc|run|dev|proc|sys|tmp|var)?$|^A /(run|etc|dev)/' || true)
    [ -z "$written" ] || { echo "FAILED: $name has written $written"; exit 1; }
done
podman logs offbeat-try-server 2>&1 | tail -n 1
echo "PASSED a run of a server and two sites in containers"

#!/usr/bin/env bash
# Check the systemd units, and run them under a systemd of their own.
#
# Without root the units are only checked. With it a second systemd is process 1 of new namespaces. Its /etc,
# /opt and /var are overlays, which end with it, and its network is loopback alone. There a server and two sites,
# in the units' sandboxes, make a run. The server is frozen in the middle of it: the watchdog must replace it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
units=$here/../systemd
python=${PYTHON:-$here/../../.venv/bin/python}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/offbeat-systemd-XXXXXX")
export GROUP=offbeat-try-$$ # the control group of the second systemd
clean() { # the groups that systemd has made outlive it, empty
    if [ "$(id -u)" = 0 ]; then
        unshare --mount bash -c 'mount -t cgroup2 none /sys/fs/cgroup && [ ! -d "/sys/fs/cgroup/$GROUP" ] ||
            find "/sys/fs/cgroup/$GROUP" -depth -type d -exec rmdir {} +' 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean EXIT

if ! command -v systemd-analyze >/dev/null; then
    echo "SKIPPED systemd: systemd-analyze is not installed"
    exit 0
fi

# What a unit starts must be there when it is verified.
for unit in serve site backup; do
    sed 's|^ExecStart=/opt/offbeat/bin/offbeat|ExecStart=/bin/true|' "$units/offbeat-$unit@.service" \
        >"$work/offbeat-$unit@heart.service"
done
cp "$units/offbeat-backup@.timer" "$work/offbeat-backup@heart.timer"
systemd-analyze verify "$work"/*.service "$work"/*.timer
for unit in serve site backup; do
    systemd-analyze security --offline=yes --threshold=20 "$units/offbeat-$unit@.service" | tail -n 1
done
echo "PASSED systemd-analyze"

if [ "$(id -u)" != 0 ] || ! command -v unshare >/dev/null || [ ! -x /lib/systemd/systemd ]; then
    echo "SKIPPED the units under systemd: this needs root, unshare and /lib/systemd/systemd"
    exit 0
fi

mkdir -p "$work"/{units,etc,etc-work,machine}
cp "$units"/*.service "$work/units/"
for unit in serve site; do # no journal is there, and two minutes are long for a trial
    mkdir "$work/units/offbeat-$unit@.service.d"
    printf '[Service]\nStandardOutput=append:%s/%s.log\nStandardError=inherit\nWatchdogSec=10\nTimeoutAbortSec=2\nRestartSec=1\n' \
        "$work" "$unit" >"$work/units/offbeat-$unit@.service.d/try.conf"
done
cat >"$work/units/try.service" <<END
[Unit]
DefaultDependencies=no
SuccessAction=exit-force
SuccessActionExitStatus=0
FailureAction=exit-force
FailureActionExitStatus=1
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash $here/systemd-inside.sh $work/site.log
StandardOutput=file:$work/output
StandardError=inherit
END
# The units ask for targets that have nothing to do here.
printf '[Unit]\nDefaultDependencies=no\n' | tee "$work/units/"{sysinit,basic,shutdown,network-online}.target >/dev/null
printf '[Unit]\nDefaultDependencies=no\nWants=try.service\n' >"$work/units/try.target"

export WORK=$work UNITS=$units HERE=$here
SOURCE=$(cd "$here/../../src" && pwd)
PACKAGES=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
INTERPRETER=$("$python" -c 'import sys; print(sys.base_prefix)')
export SOURCE PACKAGES INTERPRETER

machine() {
    mount --make-rprivate /
    mount -t tmpfs tmpfs /run
    mount -t overlay overlay -o "lowerdir=/etc,upperdir=$WORK/etc,workdir=$WORK/etc-work" /etc
    mount -t tmpfs -o mode=755 tmpfs /var/lib
    mount -t tmpfs -o mode=755 tmpfs /opt
    umount -R /sys/fs/cgroup 2>/dev/null || true
    mount -t cgroup2 none /sys/fs/cgroup
    mkdir -p "/sys/fs/cgroup/$GROUP"
    echo $$ >"/sys/fs/cgroup/$GROUP/cgroup.procs"
    ip link set lo up
    mkdir -p /opt/offbeat/{bin,src,packages,python}
    mount --bind "$SOURCE" /opt/offbeat/src
    mount --bind "$PACKAGES" /opt/offbeat/packages
    mount --bind "$INTERPRETER" /opt/offbeat/python
    # Neither the checkout nor the interpreter need be where the sandbox can see them.
    cat >/opt/offbeat/bin/offbeat <<'END'
#!/bin/sh
export PYTHONHOME=/opt/offbeat/python LD_LIBRARY_PATH=/opt/offbeat/python/lib PYTHONPATH=/opt/offbeat/src:/opt/offbeat/packages
exec /opt/offbeat/python/bin/python3 -c 'from offbeat.cli import main; main()' "$@"
END
    chmod 755 /opt/offbeat/bin/offbeat
    systemd-sysusers "$UNITS/offbeat.conf"
    exec unshare --cgroup --pid --mount --fork --kill-child --mount-proc bash -c '
        umount /sys/fs/cgroup
        mount -t cgroup2 none /sys/fs/cgroup
        export container=try SYSTEMD_UNIT_PATH="$WORK/units" SYSTEMD_LOG_TARGET=console SYSTEMD_LOG_LEVEL=notice
        exec /lib/systemd/systemd --unit=try.target --show-status=no'
}
export -f machine

chmod 711 "$work"
code=0
timeout -s KILL 540 unshare --mount --ipc --uts --net bash -ec machine >"$work/systemd.log" 2>&1 || code=$?
cat "$work/output" || true
if [ $code != 0 ]; then
    tail -n 20 "$work"/*.log
    echo "FAILED the units under systemd: exit code $code"
    exit 1
fi
echo "PASSED the units under systemd"

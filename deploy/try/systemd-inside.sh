#!/usr/bin/env bash
# What systemd.sh does in the machine of its own: a run of two sites, with a server that is frozen once.
#
#     systemd-inside.sh LOG     # the sites' log
set -euo pipefail
fail() { echo "FAILED: $*"; exit 1; }
until_it_is() { # UNIT PROPERTY VALUE
    until [ "$(systemctl show "$1" --property="$2" --value)" = "$3" ]; do
        [ "$(systemctl show "$1" --property=ActiveState --value)" != failed ] || fail "$1 has failed"
        sleep 0.2
    done
}

state=/var/lib/offbeat/heart
install -d -o offbeat -g offbeat -m 0700 /var/lib/offbeat "$state"
mkdir -p /etc/offbeat/{serve,site}
for name in north south; do
    (umask 077; setpriv --reuid offbeat --regid offbeat --clear-groups \
        /opt/offbeat/bin/offbeat enrol $name --state $state >/etc/offbeat/$name.token)
    chown root:offbeat /etc/offbeat/$name.token
    chmod 640 /etc/offbeat/$name.token
done
cat >/etc/offbeat/serve/heart.env <<'END'
RECIPE=digits
OPTIONS=--listen 127.0.0.1:7117 --sites 2 --tokens /var/lib/offbeat/heart/tokens.json --dashboard 127.0.0.1:8080 --set 'until={versions: 60}' --set 'evaluate={versions: 20}'
END
for name in north south; do
    half=$([ $name = north ] && echo 1 || echo 2)
    echo "KIT=127.0.0.1:7117" >/etc/offbeat/site/$name.env
    echo "OPTIONS=--set access.token_file=/etc/offbeat/$name.token --data digits:$half/2 --set site.min_step_seconds=0.02" \
        >>/etc/offbeat/site/$name.env
done

systemctl start offbeat-serve@heart # returns when the server has said that it listens
[ "$(systemctl show offbeat-serve@heart --property=ActiveState --value)" = active ] || fail "the server is not active"
echo "the server: $(systemctl show offbeat-serve@heart --property=StatusText --value)"
[ "$(stat -c %U:%a $state)" = offbeat:700 ] || fail "the state directory is $(stat -c %U:%a $state)"
systemctl start offbeat-site@north offbeat-site@south
echo "a site: $(systemctl show offbeat-site@north --property=StatusText --value)"

until grep -q "an update was accepted" "$1"; do sleep 0.2; done # the run is under way
frozen=$(systemctl show offbeat-serve@heart --property=MainPID --value)
kill -STOP "$frozen"
until_it_is offbeat-serve@heart NRestarts 1
until_it_is offbeat-serve@heart ActiveState active
echo "the frozen server was replaced: process $frozen by $(systemctl show offbeat-serve@heart --property=MainPID --value)"

for unit in offbeat-site@north offbeat-site@south offbeat-serve@heart; do
    until_it_is $unit ActiveState inactive
    [ "$(systemctl show $unit --property=Result --value)" = success ] || fail "$unit has not ended well"
done
/opt/offbeat/bin/offbeat status $state

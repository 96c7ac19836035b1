#!/usr/bin/env bash
# A site in a network namespace of its own, behind a line of 2 Mbit/s that is cut for 20 s: the run must end, with an update
# of that site after the cut, and `offbeat check` must measure the line. Needs root, ip and tc.
set -euo pipefail
for tool in ip tc offbeat; do
    if ! command -v $tool >/dev/null; then
        echo "SKIPPED the slow line: $tool is not installed"
        exit 0
    fi
done
space=offbeat-$$ near=ob$$a far=ob$$b work=$(mktemp -d)
if ! ip netns add "$space" 2>/dev/null; then
    echo "SKIPPED the slow line: network namespaces are not allowed here"
    exit 0
fi
server=
finish() {
    status=$?
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns pids "$space" | xargs -r kill 2>/dev/null || true
    ip link del "$near" 2>/dev/null || true
    ip netns del "$space"
    if [ $status -eq 0 ]; then rm -rf "$work"; else echo "FAILED: see $work"; fi
}
trap finish EXIT
ip link add "$near" type veth peer name "$far" netns "$space"
ip addr add 198.51.100.1/24 dev "$near" && ip link set "$near" up
ip -n "$space" addr add 198.51.100.2/24 dev "$far" && ip -n "$space" link set "$far" up && ip -n "$space" link set lo up
# Both directions: what leaves the server, and what leaves the site.
tc qdisc add dev "$near" root tbf rate 2mbit burst 32kb latency 400ms
tc -n "$space" qdisc add dev "$far" root tbf rate 2mbit burst 32kb latency 400ms

cd "$work"
for site in slow quick; do offbeat enrol $site --state run --address 198.51.100.1:7117 -o $site.kit >/dev/null; done
offbeat serve digits --state run --listen 198.51.100.1:7117 --sites 2 --set algorithm=fedasync \
    --set 'model={name: mlp, hidden: [256]}' --set 'until={tasks: 400}' --set server.lease=10 >server.log 2>&1 &
server=$!
until grep -qs "listening on" server.log; do sleep 0.2; kill -0 $server; done

ip netns exec "$space" offbeat check slow.kit >check.txt
rate=$(sed -n 's/^PASS  throughput *\([0-9.]*\) MB.*, \([0-9.]*\) MB.*/\1 \2/p' check.txt)
echo "the line is measured as $rate MB/s, of 0.25"
for each in $rate; do awk "BEGIN {exit !($each > 0.1 && $each < 0.4)}"; done

offbeat join quick.kit --data digits:1/2 --state quick --set site.min_step_seconds=0.02 >quick.log 2>&1 &
ip netns exec "$space" offbeat join slow.kit --data digits:2/2 --state slow >slow.log 2>&1 &
arrived() { offbeat replay run --print --kind arrived | grep -c '"client": '"$1" || true; }
# The client whose row in `status` has this name, once it has delivered.
number() {
    offbeat status run --json | python3 -c 'import json, sys
sites = json.load(sys.stdin)["run"]["sites"]
print(next((site["client"] for site in sites if site["name"] == "slow" and site["updates"] > 3), -1))'
}
until slow=$(number) && [ "$slow" -ge 0 ]; do
    kill -0 $server
    sleep 1
done
ip link set "$near" down
sleep 20
before=$(arrived "$slow")
ip link set "$near" up
until [ "$(arrived "$slow")" -gt "$before" ] || ! kill -0 $server 2>/dev/null; do sleep 1; done
[ "$(arrived "$slow")" -gt "$before" ]
offbeat stop run --end >/dev/null
wait $server
server=
offbeat replay run
echo "PASSED a site behind 2 Mbit/s, cut for 20 s"

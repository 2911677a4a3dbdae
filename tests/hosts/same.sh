# same.sh - what several hosts compute is what one host computes, what travels between them is what was planned, and hosts
# that differ are refused. Sourced by tests/hosts/run.
# shellcheck shell=bash disable=SC2154,SC2317 # run sets the variables; functions are called through claim

# ---- the same bits -------------------------------------------------------------------------------------------------
for n in 3 4; do
    claim "one host, $n ranks: 8 steps" one_host $n --set log.metrics="one$n"
    text "one$n" >"want$n"
done
# gives_the_same HOSTFILE N OPTION...: succeeds if the text is that of N ranks on one host.
gives_the_same()
{
    rm -f metrics
    hosts "$@" --set log.metrics=metrics || return 1
    [[ $(wc -l <"want$2") -eq 8 ]] && text metrics | diff "want$2" -
}
while read -r file n options; do
    # shellcheck disable=SC2086 # one word an option
    claim "$file, $n ranks, $options: the text of one host" gives_the_same "$file" "$n" $options
done <<END
hosts22 4 --stage 0
hosts22 4 --stage 1
hosts22 4 --stage 2
hosts22 4 --stage 3
hosts13 4 --stage 3
hosts111 3 --stage 0
hosts111 3 --stage 3
END
claim "ranks dealt out to hosts in turn: the text of one host" gives_the_same hosts22 4 --mpirun='--map-by node' --stage 3

traces_one_clock()
{
    hosts hosts22 4 --set log.metrics=metrics --trace trace.json || return 1
    python3 - <<'END'
import json
trace = json.load(open("trace.json"))
ends = {}
for event in trace["traceEvents"] if isinstance(trace, dict) else trace:
    if event.get("ph") == "X":
        ends[event["pid"]] = max(ends.get(event["pid"], 0), event["ts"] + event["dur"])
print(ends)
assert len(ends) == 4 and max(ends.values()) - min(ends.values()) < 1e6  # microseconds; the clocks differ by 1e11
END
}
if command -v python3 >/dev/null; then
    claim "a trace has all hosts on one clock, though theirs are days apart" traces_one_clock
else
    echo "SKIP: a trace of several hosts: python3 is not installed"
    skipped=$((skipped + 1))
fi

# ---- traffic -------------------------------------------------------------------------------------------------------
# Larger than the model above: a step's parameters and gradients are a hundred times its small messages.
sed -e 's/^dim = .*/dim = 128/' -e 's/^seq_len = .*/seq_len = 16/' tiny.ini >traffic.ini
# network_bytes: prints what node1 has received and sent on its port so far.
network_bytes() { "$here/agent" node1 "cat /proc/net/dev" | awk '$1 == "eth0:" { print $2, $10 }'; }
# count STEPS HOSTFILE OPTION...: prints what node1 receives and sends in a run of so many steps.
count()
{
    local before after
    before=$(network_bytes)
    hosts "$2" 4 --set train.steps=100 --steps "$1" "${@:3}" >&2 || return 1
    after=$(network_bytes)
    echo $((${after% *} - ${before% *})) $((${after#* } - ${before#* }))
}
# plan STAGE HOSTFILE OPTION...: prints what --plan says that node1 receives and sends in a step.
plan()
{
    local table
    table=plan.$(tr -c 'a-z0-9\n' . <<<"${*:2}")
    [[ -s $table ]] || hosts "$2" 4 --plan "${@:3}" >"$table" || return 1
    awk -v column=$(($1 + 4)) '
        { sub(/^host,/, "host 0,") }
        /^host 0, received/ { received = $column }
        /^host 0, sent/ { print received, $column }' "$table"
}
is_near() { [[ $(($1 > $2 ? $1 - $2 : $2 - $1)) -le $(($2 / 20)) ]]; }
# is_as_planned HOSTFILE STAGE OPTION...: succeeds if what the network counts in a step is within 5% of the plan. Start and
# end of a run cancel in the difference of a short run and a long one.
is_as_planned()
{
    local ini=traffic.ini short long planned received sent
    short=$(count 2 "$1" --stage "${@:2}") && long=$(count 22 "$1" --stage "${@:2}") && planned=$(plan "$2" "$1" "${@:3}") || return 1
    received=$(((${long% *} - ${short% *}) / 20)) sent=$(((${long#* } - ${short#* }) / 20))
    echo "$*: counted $received $sent, planned $planned" | tee -a counted >&2
    is_near "$received" "${planned% *}" && is_near "$sent" "${planned#* }"
}
for file in hosts22 hosts13; do
    for stage in 0 1 2 3; do
        claim "$file, stage $stage: the network counts the planned bytes" is_as_planned "$file" "$stage"
    done
done
claim "hosts22, stage 3, groups of a host: the network counts the planned bytes" is_as_planned hosts22 3 --set zero.shard_group=host
claim "hosts13, stage 3, groups of two: the network counts the planned bytes" is_as_planned hosts13 3 --set zero.shard_group=2
claim "hosts22, stage 3, groups of a host that gather in fp8: the network counts the planned bytes" is_as_planned hosts22 3 \
    --set zero.shard_group=host --set train.precision=bf16 --set train.fp8=linear --set zero.gather=fp8

# ---- hosts that differ ----------------------------------------------------------------------------------------------
# is_refused LIMIT_S CODE PATTERN COMMAND...: it ends in time with this code, and one line has PATTERN.
is_refused()
{
    local begin=$SECONDS code=0
    "${@:4}" >log.refused 2>&1 || code=$?
    cat log.refused
    echo "exit code $code after $((SECONDS - begin)) s"
    [[ $((SECONDS - begin)) -le $1 && $code -eq $2 && $(grep -cE "$3" log.refused) -eq 1 ]]
}
has_other_data()
{
    tr a b <text.txt >other.txt
    on node2 "mount --bind $PWD/other.txt $PWD/text.txt" || return 1
    is_refused 60 2 'ranks 2-3 \(here rank 2 on node2\): \[data\] train: text.txt has .* tokens' hosts hosts22 4 --steps 2
    local status=$?
    on node2 "umount $PWD/text.txt"
    return "$status"
}
claim "another text on one host: refused before step 1, with ranks and host" has_other_data
shares_no_directory()
{
    mkdir -p private && on node2 "mount -t tmpfs tmpfs $PWD/private" || return 1
    is_refused 60 1 "rank 2 on node2: '.*private/ck' is not the directory that rank 0 has by this name" \
        hosts hosts22 4 --steps 2 --set checkpoint.dir="$PWD/private/ck"
    local status=$?
    on node2 "umount $PWD/private"
    [[ $status -eq 0 && -z $(ls -A private/ck) ]]
}
claim "a checkpoint directory that is not shared: refused before step 1, with the host" shares_no_directory
has_other_cpu()
{
    timeout -k 5 120 "$here/agent" login exec mpirun --hostfile "$PWD/hosts22" -np 2 -x OPENBLAS_CORETYPE=Haswell \
        "$zerotrain" tiny.ini : -np 2 -x OPENBLAS_CORETYPE=Prescott "$zerotrain" tiny.ini </dev/null >log.cpu 2>&1
    cat log.cpu
    grep -qE 'CPUs are of different kinds \(rank 0: .*OpenBLAS Haswell; 2 ranks: others\)' log.cpu
}
claim "hosts whose CPUs compute differently: a line says so" has_other_cpu
# Both hosts have the same address on a second network, as where Docker runs: MPI may take it for the way to the other.
docker_subnet=172.17.0
has_the_same_address()
{
    local node
    for node in node1 node2; do
        on "$node" "ip link add docker0 type bridge && ip address add $docker_subnet.1/16 dev docker0 && ip link set docker0 up" || return 1
    done
    ZERO_TIMEOUT_S=5 hosts hosts22 4 --mpirun='--mca btl_tcp_if_include docker0' --steps 2 >log.address 2>&1
    local code=$?
    cat log.address
    hosts hosts22 4 --mpirun='--mca btl_tcp_if_include eth0' --steps 2 || return 1
    for node in node1 node2; do on "$node" "ip link delete docker0"; done
    [[ $code -ne 0 && $code -ne 124 ]] && grep -qE 'within 5 s \(ZERO_TIMEOUT_S\)' log.address
}
claim "an address that two hosts have: ended after ZERO_TIMEOUT_S; with the network named, it runs" has_the_same_address
slow_down() { on node2 "tc qdisc add dev eth0 root tbf rate 20mbit burst 32kbit latency 400ms"; }
is_slow()
{
    gives_the_same hosts22 4 --stage 3
    local status=$?
    on node2 "tc qdisc delete dev eth0 root"
    return "$status"
}
if command -v tc >/dev/null && slow_down 2>/dev/null; then
    claim "a link of 20 Mbit/s: the text of one host" is_slow
else
    echo "SKIP: a slow link: this machine has no tc, or no tbf for it"
    skipped=$((skipped + 1))
fi


# lost.sh - ranks, hosts and launchers that are lost: runs end in time, name what is lost, leave nothing behind, or go on.
# Sourced by tests/hosts/run.
# shellcheck shell=bash disable=SC2154,SC2317 # run sets the variables; functions are called through claim

# start NAME TIMEOUT_S OPTION...: starts a long run on two hosts in the background, and returns when it has saved once.
start()
{
    local name=$1 i
    ZERO_TIMEOUT_S=$2 hosts hosts22 4 "${@:3}" --stage 3 --set train.steps=1000000 --set checkpoint.every=20 \
        --set checkpoint.dir="$scratch/checkpoints.$name" >"log.$name" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        [[ ! -e checkpoints.$name/latest ]] || return 0
        sleep 0.1
    done
    cat "log.$name"
    return 1
}
# rank_on HOST: prints the PID of a rank on it.
rank_on() { "$here/agent" "$1" "pgrep -x zerotrain | tail -n 1"; }
no_rank_is_left()
{
    local node
    for node in node1 node2; do
        ! kill -0 "$(<"$ZERO_LAB/$node.pid")" 2>/dev/null || ! "$here/agent" "$node" "pgrep -x zerotrain" || return 1
    done
}
# ends NAME LIMIT_S CODE PATTERN: succeeds if the run ends in time with an exit code that matches CODE, leaves no rank
# behind five seconds later, and logs a line that matches PATTERN. When mpirun loses a host, it ends before its ranks do.
ends()
{
    local begin=$SECONDS code=0 node
    while kill -0 "$job" 2>/dev/null && [[ $((SECONDS - begin)) -le $2 ]]; do sleep 0.1; done
    if kill -0 "$job" 2>/dev/null; then
        echo "still running after $2 s"
        cat "log.$1"
        return 1
    fi
    wait "$job" || code=$?
    echo "exit code $code after $((SECONDS - begin)) s"
    cat "log.$1"
    is_within 5 no_rank_is_left && [[ $code -ne 124 && $code =~ ^($3)$ ]] && grep -qE "$4" "log.$1"
}
is_told_to_stop() { start stop 60 && "$here/agent" node2 "kill -TERM $(rank_on node2)" && ends stop 30 3 'SIGTERM: stopping after step .*, which is saved'; }
claim "SIGTERM to a rank of another host: saved, exit code 3" is_told_to_stop
is_killed() { start kill 60 && "$here/agent" node2 "kill -KILL $(rank_on node2)" && ends kill 20 '[1-9][0-9]*' 'rank [23] .*node2'; }
claim "kill -9 of a rank of another host: all end, mpirun names rank and host" is_killed
is_stopped() { start stopped 5 && on node2 "kill -STOP $(rank_on node2)" && ends stopped 25 '[1-9][0-9]*' 'not heard from: rank [23] on node2'; }
claim "SIGSTOP of a rank of another host: ended after ZERO_TIMEOUT_S, with rank and host" is_stopped
loses_its_launcher()
{
    local pid
    start launcher 60 || return 1
    for pid in $(pgrep -x mpirun); do
        if grep -qzx "ZERO_LAB=$ZERO_LAB" "/proc/$pid/environ"; then kill -KILL "$pid"; fi
    done
    wait "$job"
    cat log.launcher
    is_within 15 no_rank_is_left
}
claim "kill -9 of mpirun: no rank is left on any host" loses_its_launcher

# launch OPTION...: like start, by launch/zerotrain, 1500 steps that are saved in the memory of the hosts. Sets `launched`.
launch()
{
    rm -f metrics
    # Not through `agent`, which would stay between.
    nsenter --target "$(<"$ZERO_LAB/login.pid")" --net --uts --mount --ipc --wd="$PWD" "$repo/launch/zerotrain" -np 4 \
        --hosts "$PWD/hosts22" "$@" --stage 3 --set log.metrics=metrics --set checkpoint.memory_dir=/dev/shm/run1 \
        --set checkpoint.memory_every=5 --set train.steps=1500 --set train.micro_batch=3 tiny.ini </dev/null >log.launch 2>&1 &
    launched=$!
}
has_step() { grep -q "\"step\": $1," metrics 2>/dev/null; }
no_mpirun_is_left() { ! pgrep -f "mpirun .*--hostfile $1 "; }
is_killed_with_its_script()
{
    local file
    launch --restarts 2 && is_within 60 has_step 42 || return 1
    file=$(sed -nE 's/.*--hostfile ([^ ]*) .*/\1/p' log.launch)
    kill -KILL "$launched"
    wait "$launched"
    cat log.launch
    [[ -n $file ]] && is_within 15 no_rank_is_left && is_within 5 no_mpirun_is_left "$file"
    local status=$?
    rm -f "$file"
    on node1 "rm -r /dev/shm/run1" && on node2 "rm -r /dev/shm/run1"
    return "$status"
}
claim "kill -9 of launch/zerotrain: neither mpirun nor a rank is left on any host" is_killed_with_its_script
goes_on_without_mpirun()
{
    local code=0
    launch --restarts 2 && is_within 60 has_step 42 || return 1
    pgrep -f "mpirun .*--hostfile $(sed -nE 's/.*--hostfile ([^ ]*) .*/\1/p' log.launch) " | xargs kill -KILL
    wait "$launched" || code=$?
    cat log.launch
    [[ $code -eq 0 ]] && text metrics | diff want.1500 - && grep -q 'restart 1 of 2 .*with 4 ranks, from' log.launch
}
undisturbed()
{
    one_host 4 --stage 3 --set train.steps=1500 --set train.micro_batch=3 --set log.metrics=whole &&
        text whole >want.1500 && [[ $(wc -l <want.1500) -eq 1500 ]]
}
claim "1500 steps undisturbed" undisturbed
claim "kill -9 of mpirun, with --restarts: goes on to the text of one host" goes_on_without_mpirun
# It goes on with the ranks that are left, and the next restart uses the host that is back, which has no checkpoint.
uses_a_host_again()
{
    local code=0 resumed
    launch --restarts 3 && is_within 60 has_step 42 && lab_crash node2 || return 1
    is_within 60 grep -q 'restart 1 of 3 .*with 2 ranks, without node2, from' log.launch &&
        is_within 60 has_step 300 && lab_start node2 && ! grep -q 'restart 2' log.launch &&
        "$here/agent" node1 "kill -KILL $(rank_on node1)"
    wait "$launched" || code=$?
    cat log.launch
    resumed=$(sed -nE "s|.*resuming after step ([0-9]+), from /dev/shm/run1/.*|\1|p" log.launch | tr '\n' ' ')
    echo "exit code $code, resumed after $resumed"
    [[ $code -eq 0 && $resumed =~ ^[0-9]+\ [0-9]+\ $ ]] && text metrics | diff want.1500 - &&
        grep -q 'restart 2 of 3 .*with 4 ranks, from' log.launch && on node1 "[[ ! -e /dev/shm/run1 ]]" &&
        on node2 "[[ ! -e /dev/shm/run1 ]]"
}
claim "a host goes and comes back: left out by one restart, used by the next, to the text of one host" uses_a_host_again
# Open MPI 4's daemons check each other only every five minutes by default (docs/launching.md, Several hosts).
keepalive='--mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3'
crashes() { start crash 60 --mpirun="$keepalive" && lab_crash node2 && ends crash 40 '[1-9][0-9]*' 'node2'; }
claim "a host loses its power, with keepalive as in docs/launching.md: all end within 40 s, mpirun names the host" crashes

lab_start node2 || { failed=1; finish; }
# Two of four ranks are gone with their host; the other has a checkpoint of all four in its memory.
survives_a_lost_host()
{
    local i launcher code=0 resumed directory=/dev/shm/run1
    local -a options=(--stage 3 --set train.steps=400 --set train.micro_batch=3)
    one_host 4 "${options[@]}" --set log.metrics=whole && text whole >want.whole || return 1
    rm -f metrics
    "$here/agent" login exec "$repo/launch/zerotrain" -np 4 --hosts "$PWD/hosts22" --restarts 2 "${options[@]}" \
        --set log.metrics=metrics --set checkpoint.memory_dir="$directory" --set checkpoint.memory_every=5 tiny.ini \
        </dev/null >log.memory 2>&1 &
    launcher=$!
    is_within 60 grep -q '"step": 42,' metrics && lab_crash node2
    wait "$launcher" || code=$?
    cat log.memory
    resumed=$(sed -nE "s|.*resuming after step ([0-9]+), from $directory/.*|\1|p" log.memory)
    echo "exit code $code, resumed after step $resumed"
    [[ $code -eq 0 && $resumed -ge 35 && $(wc -l <want.whole) -eq 400 ]] && text metrics | diff want.whole - &&
        grep -q 'with 2 ranks, without node2, from' log.memory && on node1 "[[ ! -e $directory ]]"
}
claim "a host loses its power: trained to the end on the other, from its memory, to the text of one host" survives_a_lost_host

lab_start node2 || { failed=1; finish; }
# end_tree PID: kills a process and its descendants.
end_tree()
{
    local child
    local -a children
    mapfile -t -d ' ' children < <(cat "/proc/$1/task/"*/children 2>/dev/null)
    kill -KILL "$1" 2>/dev/null
    for child in "${children[@]}"; do end_tree "$child"; done
}
is_named()
{
    local i
    start named 5 && lab_unplug node2 || return 1
    for ((i = 0; i < 200; i++)); do
        "$here/agent" node1 "pgrep -x zerotrain" >/dev/null || break
        sleep 0.1
    done
    # mpirun itself would wait for that host's daemon until TCP gives up, after a quarter of an hour.
    end_tree "$job"
    wait "$job" 2>/dev/null
    cat log.named
    [[ $i -lt 200 && $(grep -c 'rank [01] on node1: .*not heard from: rank 2 on node2, 3 on node2' log.named) -eq 2 ]]
}
claim "a cable is drawn: after ZERO_TIMEOUT_S the ranks of the other host name the lost ranks, and end" is_named

# lab.sh - makes several hosts out of one machine. Sourced by tests/hosts/run.
#
# A host is a set of Linux namespaces: it has its own network, name, processes, System V IPC, /dev/shm and monotonic clock.
# All hosts share the file system, as the hosts of a cluster share the one for checkpoints. Their Ethernet ports meet in a
# bridge, which is in a network namespace, too, so nothing outside is changed or reached. The host "login", from which
# mpirun starts, has only its own network and name: it must see the processes of the others.
#
# Functions: lab_missing, lab_up N, lab_start HOST, lab_unplug HOST, lab_crash HOST, lab_down. `agent` runs commands on a
# host. ZERO_LAB is a folder for the state.
# shellcheck shell=bash

# ---- claims --------------------------------------------------------------------------------------------------------
# The script that sources this sets part, its name in launch/check, and scratch, a folder.
passed=0 failed=0 skipped=0
finish()
{
    echo "$part: $passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}
claim() # TEXT COMMAND...
{
    local text=$1
    shift
    if "$@" >"$scratch/claim.log" 2>&1; then
        echo "ok: $text"
        passed=$((passed + 1))
    else
        echo "FAILED: $text"
        tail -n 40 "$scratch/claim.log" | sed 's/^/    | /'
        failed=$((failed + 1))
    fi
}
skip_all() # REASON
{
    echo "SKIP: $1"
    skipped=1
    finish
}

# ---- hosts ---------------------------------------------------------------------------------------------------------
lab_subnet=10.77.0
export ZERO_LAB

# Prints why this machine cannot make hosts, or nothing if it can.
lab_missing()
{
    local tool
    [[ $(id -u) -eq 0 ]] || { echo "only root can make namespaces that have a network"; return; }
    for tool in unshare nsenter ip; do
        command -v "$tool" >/dev/null || { echo "there is no $tool"; return; }
    done
    unshare --net --uts --mount --ipc --pid --time --fork \
        sh -c 'ip link add zbr0 type bridge && ip link add zeth0 type veth peer name zeth1' >/dev/null 2>&1 ||
        echo "this machine allows no namespaces, bridges or veth pairs"
}

# lab_hold NAME OPTION...: starts the process that holds the namespaces of a host and writes its PID to NAME.pid. OPTIONs
# are those of unshare.
lab_hold()
{
    local name=$1 i
    shift
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --net --uts --mount --propagation private "$@" bash -c '
        name=$1
        hostname "$name"
        ip link set lo up
        [[ ! -e $ZERO_LAB/hosts ]] || mount --bind "$ZERO_LAB/hosts" /etc/hosts
        if [[ $$ -eq 1 ]]; then
            mount -t proc proc /proc
            mount -t tmpfs tmpfs /dev/shm
        fi
        touch "$ZERO_LAB/$name.ready"
        while :; do sleep 1000 & wait $!; done' hold "$name" </dev/null >"$ZERO_LAB/$name.log" 2>&1 &
    echo $! >"$ZERO_LAB/$name.holder"
    disown $! # without a message from bash when it ends
    for ((i = 0; i < 200; i++)); do
        [[ ! -e $ZERO_LAB/$name.ready ]] || break
        sleep 0.05
    done
    [[ -e $ZERO_LAB/$name.ready ]] || { echo "host $name does not start: $(cat "$ZERO_LAB/$name.log")"; return 1; }
    # With a PID namespace, unshare is the parent of the first process.
    if [[ " $* " == *" --pid "* ]]; then
        tr -d ' ' <"/proc/$(<"$ZERO_LAB/$name.holder")/task/$(<"$ZERO_LAB/$name.holder")/children" >"$ZERO_LAB/$name.pid"
    else
        cp "$ZERO_LAB/$name.holder" "$ZERO_LAB/$name.pid"
    fi
}

# lab_plug HOST ADDRESS: joins a host to the bridge.
lab_plug()
{
    local name=$1 address=$2 switch node
    switch=$(<"$ZERO_LAB/switch.pid")
    node=$(<"$ZERO_LAB/$name.pid")
    nsenter --target "$switch" --net ip link add "$name" type veth peer name eth0 netns "$node" &&
        nsenter --target "$switch" --net ip link set "$name" master zbr0 up &&
        nsenter --target "$node" --net ip address add "$address/24" dev eth0 &&
        nsenter --target "$node" --net ip link set eth0 up
}

# lab_up N: starts login and node1 ... nodeN.
lab_up()
{
    local i
    lab_hold switch && nsenter --target "$(<"$ZERO_LAB/switch.pid")" --net sh -c 'ip link add zbr0 type bridge && ip link set zbr0 up' || return 1
    {
        echo "127.0.0.1 localhost"
        echo "$lab_subnet.1 login"
        for ((i = 1; i <= $1; i++)); do echo "$lab_subnet.$((10 + i)) node$i"; done
    } >"$ZERO_LAB/hosts"
    lab_hold login && lab_plug login "$lab_subnet.1" || return 1
    for ((i = 1; i <= $1; i++)); do lab_start "node$i" || return 1; done
}

# lab_start nodeN: starts a host, also after lab_crash. The clocks of the hosts are days apart, as if they had been
# started on different days.
lab_start()
{
    local i=${1#node}
    rm -f "$ZERO_LAB/$1.ready" "$ZERO_LAB/$1.crashed"
    nsenter --target "$(<"$ZERO_LAB/switch.pid")" --net ip link delete "$1" 2>/dev/null # left by a crash
    lab_hold "$1" --ipc --pid --fork --kill-child --time --monotonic $((100000 * i)) && lab_plug "$1" "$lab_subnet.$((10 + i))"
}

# lab_unplug HOST: drops all packets from now on, and resets no connection, like a drawn cable.
lab_unplug()
{
    nsenter --target "$(<"$ZERO_LAB/switch.pid")" --net ip link set "$1" nomaster
}

# lab_crash HOST: ends a host like a power failure.
lab_crash()
{
    touch "$ZERO_LAB/$1.crashed"
    lab_unplug "$1"
    kill -KILL "$(<"$ZERO_LAB/$1.pid")"
}

# Ends all hosts.
lab_down()
{
    local file pid
    rm -f "$ZERO_LAB"/*.crashed
    for file in "$ZERO_LAB"/*.pid "$ZERO_LAB"/*.holder; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        # The first process of a PID namespace ends the others with it. Other shells' children are ended here.
        # shellcheck disable=SC2046 # one word a process
        kill -KILL "$pid" $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) 2>/dev/null
    done
}

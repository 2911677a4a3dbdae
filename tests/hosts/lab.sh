# lab.sh - several hosts out of one machine, for tests/hosts/run, which sources it.
#
# A host is a set of Linux namespaces with a network, a name, processes, System V IPC, a /dev/shm and a monotonic clock of
# its own; all hosts share the file system, as those of a cluster share the one that checkpoints are written to. Their
# Ethernet ports meet in a bridge, which stands in a network namespace too, so nothing outside is changed or reached. The
# "login" host, from where mpirun starts, has only network and name of its own: it must see the others' processes.
#
# Functions: lab_missing, lab_up N, lab_unplug HOST, lab_crash HOST, lab_down; `agent` runs commands on a host. ZERO_LAB is the
# folder of state.
# shellcheck shell=bash

lab_subnet=10.77.0
export ZERO_LAB

# Prints why this machine cannot make hosts; nothing if it can.
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

# Starts the process that holds the namespaces of a host and leaves its number in NAME.pid. $2...: of unshare.
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
    disown $! # nobody tells of its end
    for ((i = 0; i < 200; i++)); do
        [[ ! -e $ZERO_LAB/$name.ready ]] || break
        sleep 0.05
    done
    [[ -e $ZERO_LAB/$name.ready ]] || { echo "host $name does not start: $(cat "$ZERO_LAB/$name.log")"; return 1; }
    # In a PID namespace unshare stands between us and its first process.
    if [[ " $* " == *" --pid "* ]]; then
        tr -d ' ' <"/proc/$(<"$ZERO_LAB/$name.holder")/task/$(<"$ZERO_LAB/$name.holder")/children" >"$ZERO_LAB/$name.pid"
    else
        cp "$ZERO_LAB/$name.holder" "$ZERO_LAB/$name.pid"
    fi
}

# Joins a host to the bridge.
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

lab_up() # N: login, node1 ... nodeN
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

lab_start() # nodeN: the clocks of nodes are days apart, as those of machines that were started on different days
{
    local i=${1#node}
    rm -f "$ZERO_LAB/$1.ready" "$ZERO_LAB/$1.crashed"
    nsenter --target "$(<"$ZERO_LAB/switch.pid")" --net ip link delete "$1" 2>/dev/null # of before a crash
    lab_hold "$1" --ipc --pid --fork --kill-child --time --monotonic $((100000 * i)) && lab_plug "$1" "$lab_subnet.$((10 + i))"
}

# Packets vanish from now on, and no connection is reset: as when a cable is drawn.
lab_unplug()
{
    nsenter --target "$(<"$ZERO_LAB/switch.pid")" --net ip link set "$1" nomaster
}

# As when the power fails.
lab_crash()
{
    touch "$ZERO_LAB/$1.crashed"
    lab_unplug "$1"
    kill -KILL "$(<"$ZERO_LAB/$1.pid")"
}

lab_down()
{
    local file pid
    rm -f "$ZERO_LAB"/*.crashed
    for file in "$ZERO_LAB"/*.pid "$ZERO_LAB"/*.holder; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        # The first process of a PID namespace takes the others with it; what the other shells wait for is named.
        # shellcheck disable=SC2046 # one word a process
        kill -KILL "$pid" $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) 2>/dev/null
    done
}

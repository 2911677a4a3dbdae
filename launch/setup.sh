# setup.sh - what the launch scripts share: announcing steps, failing with a reason, installing missing packages,
# counting cores and GPUs. Sourced, never run.
#
# A script that sources this announces each step with `step`. If it ends early, its last line names the step, the reason
# and what to do. Nothing is written outside the repository, and only apt-get runs as root.
# shellcheck shell=bash disable=SC2034 # the scripts that source this read the package lists

set -euo pipefail
export LC_ALL=C

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
script=launch/$(basename "$0")

# What `make` needs, by Debian's and Ubuntu's names.
build_packages=(gcc libc6-dev make pkg-config openmpi-bin libopenmpi-dev libopenblas-dev libiniparser-dev
    libjansson-dev libxxhash-dev libhwloc-dev libpcre2-dev libutf8proc-dev)
# What the tests need as well.
check_packages=(check cppcheck clang libomp-dev g++ shellcheck valgrind libc6-dbg)
# What the slow parts of launch/check need as well.
slow_packages=(iproute2 procps util-linux python3 python3-venv)
# What the part `slurm` needs: installed for it if the distribution has them.
slurm_packages=(slurm-wlm munge)
# Installed if the distribution has them: tests/lint checks the layout of the sources with this version of clang-format;
# test_languages builds and runs Fortran and Python; test_chat renders templates; tests/lint and test_abi compare the ABI
# with abigail-tools.
check_packages_optional=(clang-format-14 gfortran python3-numpy python3-pip python3-jinja2 abigail-tools)

current_step="starting"
reason_given=0

step()
{
    current_step=$1
    printf '\n== %s\n' "$1"
}

# say FORMAT ARGUMENT...: prints to stderr. A line that cannot be written is lost, and ends nothing.
say()
{
    # shellcheck disable=SC2059 # as printf
    printf "$@" >&2 2>/dev/null || true
}

# fail REASON WHAT_TO_DO [EXIT_CODE]
fail()
{
    reason_given=1
    say '%s: failed while %s: %s. %s\n' "$script" "$current_step" "$1" "$2"
    exit "${3:-1}"
}

on_exit()
{
    local status=$?
    if [[ $status -ne 0 && $reason_given -eq 0 ]]; then
        say '%s: failed while %s (exit code %d). The lines above say why; fix that and run it again.\n' \
            "$script" "$current_step" "$status"
    fi
}
trap on_exit EXIT

# stopped [WHAT_TO_DO [EXIT_CODE]]: ends the script, which somebody has stopped.
stopped()
{
    reason_given=1
    say '%s: stopped while %s%s\n' "$script" "$current_step" "${1:+. $1}"
    exit "${2:-130}"
}
trap stopped INT TERM

# ---- packages ------------------------------------------------------------------------------------------------------

is_installed()
{
    # Prints one line per architecture; a removed package has the status config-files or not-installed.
    dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -x installed >/dev/null
}

# Prints which of the packages are not installed.
missing_packages()
{
    local package
    for package in "$@"; do
        is_installed "$package" || printf '%s\n' "$package"
    done
}

# Succeeds if apt has a version of the package that it could install.
is_available()
{
    local candidate
    candidate=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p')
    [[ -n $candidate && $candidate != "(none)" ]]
}

all_available()
{
    local package
    for package in "$@"; do
        is_available "$package" || return 1
    done
}

# Runs apt-get as root, quietly. On failure prints its last lines and sets apt_reason.
apt_get()
{
    local -a as_root=()
    [[ $(id -u) -eq 0 ]] || as_root=(sudo)
    local log
    log=$(mktemp)
    printf '   apt-get %s\n' "$*"
    if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=120 \
        -o Acquire::Retries=2 "$@" >"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" | sed 's/^/   | /' >&2
        apt_reason=$(grep -m1 '^E: ' "$log" || echo "apt-get failed")
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# install_packages PACKAGE...: installs those that are missing. Ends the script with a reason if that fails.
install_packages()
{
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        printf '   this is neither Debian nor Ubuntu, so nothing is installed. Needed packages, by their Debian names:\n   %s\n' "$*"
        return
    fi
    local -a missing
    mapfile -t missing < <(missing_packages "$@")
    if [[ ${#missing[@]} -eq 0 ]]; then
        echo "   all $# packages are already installed"
        return
    fi
    echo "   missing: ${missing[*]}"
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null || fail "packages are missing, and installing them needs root or sudo" \
            "Ask an administrator to run: apt-get install ${missing[*]}"
        echo "   sudo is used only for apt-get"
        # apt-get runs without a terminal, so ask for the password here.
        sudo -n true 2>/dev/null || sudo -v || fail "sudo was refused" "Ask an administrator to run: apt-get install ${missing[*]}"
    fi

    local package
    # A fresh machine or container has no package lists; an old one lists versions that no longer exist.
    if ! all_available "${missing[@]}"; then
        apt_get update || fail "$apt_reason" "Check the network and /etc/apt/sources.list, then run it again."
        for package in "${missing[@]}"; do
            is_available "$package" || fail "apt has no package $package" \
                "On Ubuntu enable universe (add-apt-repository universe); Debian 12/13 and Ubuntu 22.04/24.04 are supported."
        done
    fi
    if ! apt_get install --no-install-recommends "${missing[@]}"; then
        echo "   trying again with fresh package lists"
        apt_get update || fail "$apt_reason" "Check the network and /etc/apt/sources.list, then run it again."
        apt_get install --no-install-recommends "${missing[@]}" ||
            fail "$apt_reason" "Fix that (apt-get install ${missing[*]} shows everything), then run it again."
    fi
}

# Installs those of the packages that this distribution has, and continues without the others.
install_optional_packages()
{
    command -v apt-cache >/dev/null || return 0
    local package
    local -a wanted=()
    for package in "$@"; do
        if is_installed "$package" || is_available "$package"; then
            wanted+=("$package")
        else
            echo "   this distribution has no $package: what needs it is skipped"
        fi
    done
    [[ ${#wanted[@]} -eq 0 ]] || install_packages "${wanted[@]}"
}

# ---- the machine ---------------------------------------------------------------------------------------------------

# Prints how many cores this process may use, by its affinity mask and the container's quota, if any.
core_count()
{
    local cores quota period
    cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc counts no more than these say
    if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
        quota=$(((quota + period - 1) / period))
        cores=$((quota < cores ? quota : cores))
    fi
    echo $((cores > 0 ? cores : 1))
}

# Succeeds if this machine has a GPU of NVIDIA's.
has_gpu()
{
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ $(nvidia-smi -L 2>/dev/null) == *'GPU '* ]]
}

# Succeeds if what was built last has CUDA, whose functions it then names.
built_with_cuda()
{
    grep -q cudaMalloc "$repo/build/zerotrain" 2>/dev/null
}

# Prints how many GPUs this build can use.
gpu_count()
{
    local count=0
    if built_with_cuda; then
        count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
    fi
    echo "$count"
}

#!/bin/bash
# `make install` gives a tree from which another program builds: DESTDIR and PREFIX are kept apart, pkg-config's answer
# is enough for shared and static linking, find_package for CMake, a distribution's folders are taken, uninstall takes
# back every file. What is installed is hardened. Flags of the user's add to ours, install takes what was built, and make
# rebuilds what it must and no more.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

# The make that runs this test must not pass its own settings down.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES SANITIZE WERROR V CC CFLAGS CPPFLAGS LDFLAGS CUDA NVCC STATIC HARDEN
# Relative, as when it was built: the dependency files name objects that way.
build=$(realpath --relative-to=. "${ZERO_BUILD:-build}")
make_here=(make --no-print-directory BUILD="$build")
cuda=$(sed -n 's/^\(CUDA\) := /\1=/p' "$build/options") # as this build has it, whatever the machine has
prefix=/opt/x
# shellcheck source=tests/support/claims.sh
source tests/support/claims.sh
dest=$scratch/dest

not() { ! "$@"; }
installed_files() { (cd "$dest" && find . ! -type d | sort); }

expected_files()
{
    printf ".$prefix/%s\n" bin/zerotrain include/zero.h include/zero.hpp include/zero.f90 lib/libzero.a lib/libzero.so lib/libzero.so.0 \
        "lib/libzero.so.$version" lib/cmake/zero/zero-config.cmake lib/cmake/zero/zero-config-version.cmake \
        share/bash-completion/completions/zerotrain share/man/man1/zerotrain.1 share/man/man3/libzero.3 \
        share/zerotrain/chat-template share/zerotrain/tokenizing/{chat,faults,records,room,special_tokens}.py \
        lib/pkgconfig/zero.pc | sort
}

# pkg-config's answer for the tree as it lies under DESTDIR.
pkg()
{
    PKG_CONFIG_PATH=$dest$prefix/lib/pkgconfig pkg-config --define-variable=prefix="$dest$prefix" "$@" zero
}

# ---- installed files -----------------------------------------------------------------------------------------------
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
claim "make install succeeds" "${make_here[@]}" install DESTDIR="$dest" PREFIX="$prefix"
claim "make install installs these files and no others" diff <(expected_files) <(installed_files)
claim "zero.pc names PREFIX, without DESTDIR" grep -qx "prefix=$prefix" "$dest$prefix/lib/pkgconfig/zero.pc"
claim "the soname is libzero.so.0" bash -c "readelf -d '$dest$prefix/lib/libzero.so' | grep -q 'SONAME.*\[libzero.so.0\]'"
version_is() { [[ $("$@") == *"$version"* ]] && [[ $(pkg --modversion) == "$version" ]]; }
claim "the installed zerotrain and zero.pc have version $version" version_is "$dest$prefix/bin/zerotrain" --version

# ---- hardening -----------------------------------------------------------------------------------------------------
installed=("$dest$prefix/bin/zerotrain" "$dest$prefix/lib/libzero.so")
# shows TOOL PATTERN: the tool's output for both files has the pattern, an extended regular expression.
shows()
{
    local file
    for file in "${installed[@]}"; do
        # shellcheck disable=SC2086 # a tool and its options
        $1 "$file" | grep -E "$2" >/dev/null || { echo "$file has no $2"; return 1; }
    done
}
lacks() # TOOL PATTERN: for both files
{
    local file
    # shellcheck disable=SC2086 # a tool and its options
    for file in "${installed[@]}"; do $1 "$file" >"$scratch/elf" && ! grep -E "$2" "$scratch/elf" || return 1; done
}
zerotrain_shows() { local installed=("${installed[0]}"); shows "$@"; }
if grep -qx 'HARDEN := 1' "$build/options" && grep -qx 'CFLAGS := -O3 -g' "$build/options"; then
    claim "hardened: relocations are read-only" shows "readelf -Wl" GNU_RELRO
    claim "hardened: symbols are bound at the start" shows "readelf -d" 'FLAGS.*(BIND_NOW|NOW)'
    claim "hardened: the stack is not executable" shows "readelf -Wl" 'GNU_STACK.* RW +0x'
    claim "hardened: code is not relocated" lacks "readelf -d" TEXTREL
    claim "hardened: stacks are guarded" shows "nm -D -u" __stack_chk_fail
    claim "hardened: libc checks sizes" shows "nm -D -u" '__(snprintf|memcpy|vsnprintf)_chk'
    claim "hardened: zerotrain is position-independent" zerotrain_shows "readelf -d" 'FLAGS_1.*PIE'
else
    echo "SKIP: hardening: this build has CFLAGS or HARDEN of its own"
fi

# ---- programs of others --------------------------------------------------------------------------------------------
cat >"$scratch/version.c" <<'EOF'
#include <stdio.h>
#include <zero.h>
int main(void)
{
    return puts(zero_version()) < 0;
}
EOF
compile() # STATIC_OPTION SOURCE PROGRAM
{
    # shellcheck disable=SC2046,SC2086 # one word a flag
    gcc -std=c17 -Wall -Wextra -Werror -o "$3" "$2" $(pkg $1 --cflags --libs)
}
prints_version() { [[ $("$@") == "$version" ]]; }
uses_shared() { [[ $(ldd "$1") == *"libzero.so.0 => $dest$prefix/lib/"* ]]; }
mpirun_2() { timeout 60 mpirun --bind-to none --map-by :OVERSUBSCRIBE -np 2 "$@"; }

export LD_LIBRARY_PATH=$dest$prefix/lib
claim "a program links with pkg-config --libs" compile "" "$scratch/version.c" "$scratch/version"
claim "a linked program uses the shared library" uses_shared "$scratch/version"
claim "a linked program prints version $version" prints_version "$scratch/version"
claim "examples/linear.c links with pkg-config --libs" compile "" examples/linear.c "$scratch/linear"
claim "examples/linear.c runs alone" timeout 60 "$scratch/linear"
claim "examples/linear.c runs on 2 ranks" mpirun_2 "$scratch/linear"
if command -v nvcc >/dev/null; then
    # shellcheck disable=SC2046 # one word a flag
    compile_cuda() { nvcc -Xcompiler -Wall,-Wextra -Werror all-warnings -o "$2" "$1" $(pkg --cflags --libs); }
    fails_for_a_gpu()
    {
        local line status=0
        line=$(CUDA_VISIBLE_DEVICES='' timeout 60 "$1" 2>&1) || status=$?
        [[ $status == 1 && $line == "zero: rank 0: "*CUDA* ]]
    }
    claim "examples/linear.cu links with pkg-config --libs" compile_cuda examples/linear.cu "$scratch/linear_cuda"
    claim "examples/linear.cu ends with libzero's line if there is no GPU" fails_for_a_gpu "$scratch/linear_cuda"
else
    echo "SKIP: examples/linear.cu: nvcc is not on PATH"
fi

if command -v cmake >/dev/null; then
    cmake_project() # VERSION: as a user's would be, which wants so new a libzero
    {
        rm -rf "$scratch/cmake"
        mkdir "$scratch/cmake"
        cat >"$scratch/cmake/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.13)
project(linear C)
find_package(zero $1 REQUIRED)
add_executable(linear $PWD/examples/linear.c)
target_link_libraries(linear zero::zero)
EOF
        cmake -S "$scratch/cmake" -B "$scratch/cmake/build" -DCMAKE_PREFIX_PATH="$dest$prefix" && cmake --build "$scratch/cmake/build"
    }
    claim "a CMake project builds examples/linear.c with find_package(zero)" cmake_project "$version"
    claim "the CMake project's program uses the shared library" uses_shared "$scratch/cmake/build/linear"
    claim "the CMake project's program runs on 2 ranks" mpirun_2 "$scratch/cmake/build/linear"
    claim "find_package refuses a version that is not installed" not cmake_project 99.0
else
    echo "SKIP: find_package: cmake is not installed"
fi

# Where the archive lies alone, -lzero means it, and pkg-config --static must name all that it needs.
rm -f "$dest$prefix"/lib/libzero.so*
claim "examples/linear.c links with pkg-config --static --libs" compile --static examples/linear.c "$scratch/static"
LD_LIBRARY_PATH=
claim "examples/linear.c, linked statically, runs alone" timeout 60 "$scratch/static"

"${make_here[@]}" install DESTDIR="$dest" PREFIX="$prefix" >/dev/null
claim "make uninstall succeeds" "${make_here[@]}" uninstall DESTDIR="$dest" PREFIX="$prefix"
claim "make uninstall leaves no file" diff /dev/null <(installed_files)

# ---- folders of a distribution -------------------------------------------------------------------------------------
multiarch=(DESTDIR="$dest" PREFIX=/usr LIBDIR=/usr/lib/x-y-z BINDIR=/usr/libexec INCLUDEDIR=/usr/include/zero-0
    DATADIR=/usr/data MANDIR=/usr/manuals)
"${make_here[@]}" install "${multiarch[@]}" >/dev/null
expected_multiarch()
{
    printf './usr/%s\n' libexec/zerotrain include/zero-0/zero.h include/zero-0/zero.hpp include/zero-0/zero.f90 lib/x-y-z/libzero.a \
        lib/x-y-z/libzero.so \
        lib/x-y-z/libzero.so.0 "lib/x-y-z/libzero.so.$version" lib/x-y-z/cmake/zero/zero-config.cmake \
        lib/x-y-z/cmake/zero/zero-config-version.cmake lib/x-y-z/pkgconfig/zero.pc \
        data/bash-completion/completions/zerotrain manuals/man1/zerotrain.1 manuals/man3/libzero.3 \
        share/zerotrain/chat-template share/zerotrain/tokenizing/{chat,faults,records,room,special_tokens}.py | sort
}
claim "make install uses LIBDIR, BINDIR, INCLUDEDIR, DATADIR and MANDIR" diff <(expected_multiarch) <(installed_files)
pc=$dest/usr/lib/x-y-z/pkgconfig/zero.pc
# shellcheck disable=SC2016 # pkg-config expands it
claim "zero.pc has LIBDIR and INCLUDEDIR relative to its prefix" diff <(sed -n 's/^libdir=//p; s/^includedir=//p' "$pc") \
    <(printf '%s\n' '${prefix}/lib/x-y-z' '${prefix}/include/zero-0')
compile_multiarch()
{
    local -a flags
    read -r -a flags < <(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$dest/usr" --cflags --libs zero)
    gcc -std=c17 -Wall -Wextra -Werror -o "$scratch/multiarch" "$scratch/version.c" "${flags[@]}"
}
claim "a program links with pkg-config --libs of another LIBDIR" compile_multiarch
# Where /lib is a link to /usr/lib, as in Debian, CMake may find the package by either name. A script reads it as a
# project would, but that the target is only remembered.
cmake_finds() # CMAKE_DIR
{
    cat >"$scratch/find.cmake" <<END
function(add_library)
endfunction()
function(set_target_properties target properties)
    list(GET ARGN 1 library)
    list(GET ARGN 3 header)
    if(NOT EXISTS "\${library}" OR NOT EXISTS "\${header}/zero.h")
        message(FATAL_ERROR "\${library} or \${header}/zero.h is not there")
    endif()
    message(STATUS "found")
endfunction()
include("$1/zero-config.cmake")
END
    cmake -P "$scratch/find.cmake" | grep found
}
if command -v cmake >/dev/null; then
    claim "CMake finds library and header" cmake_finds "$dest/usr/lib/x-y-z/cmake/zero"
    ln -sfn usr/lib "$dest/lib"
    claim "CMake finds library and header through a /lib that is a link" cmake_finds "$dest/lib/x-y-z/cmake/zero"
    rm -f "$dest/lib"
fi
"${make_here[@]}" uninstall "${multiarch[@]}" >/dev/null
claim "make uninstall with the same folders leaves no file" diff /dev/null <(installed_files)
# Manuals lie in DATADIR unless MANDIR says otherwise.
manuals_follow() { make --no-print-directory -n BUILD="$build" install DESTDIR= DATADIR=/d | grep -c ' /d/man/man[13]/$' | grep -qx 2; }
claim "MANDIR is below DATADIR unless it is set" manuals_follow

# ---- flags and options ---------------------------------------------------------------------------------------------
# In folders of their own, one object each or none.
make_in() { make --no-print-directory BUILD="$scratch/$1" "${@:2}"; }
compiles_with_both()
{
    make_in flags CUDA=0 V=1 CPPFLAGS=-DUSERS_CPP CFLAGS='-O1 -DUSERS_C' "$scratch/flags/src/base/log.o" >"$scratch/flags.log" 2>&1 ||
        { cat "$scratch/flags.log"; return 1; }
    grep -- '-Isrc.*-DUSERS_CPP.*-O1 -DUSERS_C .*-ffp-contract=off.*-fPIC' "$scratch/flags.log"
}
claim "CPPFLAGS and CFLAGS on make's command line add to the flags that the code needs" compiles_with_both
claim "LDFLAGS on make's command line adds to the flags that the code needs" grep -q -- '-pthread -LUSERS_LD' <(make_in flags CUDA=0 V=1 -n LDFLAGS=-LUSERS_LD "$scratch/flags/zerotrain")

# A CUDA toolkit that looks whole enough for the Makefile, first on PATH.
mkdir -p "$scratch/cuda/bin" "$scratch/cuda/include"
printf '#!/bin/sh\necho "nvcc: release 0.0"\n' >"$scratch/cuda/bin/nvcc"
chmod +x "$scratch/cuda/bin/nvcc"
touch "$scratch/cuda/include/cuda_runtime_api.h" "$scratch/cuda/include/nccl.h"
nvcc_commands() { PATH=$scratch/cuda/bin:$PATH make_in "$@" V=1 -n | grep -c "^$scratch/cuda/bin/nvcc "; }
make_in without CUDA=0 "$scratch/without/src/base/log.o" >/dev/null 2>&1
claim "make takes nvcc from PATH" test "$(nvcc_commands with all)" -gt 0
claim "make install after make CUDA=0 does not use nvcc" test "$(nvcc_commands without install)" -eq 0
claim "make CUDA=0 install does not use nvcc" test "$(nvcc_commands without CUDA=0 install)" -eq 0
claim "make CUDA=1 install after make CUDA=0 uses nvcc" test "$(nvcc_commands without CUDA=1 install)" -gt 0
claim "make -n changes no settings" grep -qx 'CUDA := 0' "$scratch/without/options"

# ---- rebuilding ----------------------------------------------------------------------------------------------------
claim "a second make has nothing to do" "${make_here[@]}" "$cuda" --question all

# Objects whose sources include zero.h, by the compiler's own word, and those that make would build
# again if zero.h were new (-W pretends that it is, so nothing is touched).
objects_of_header()
{
    find "$build/src" "$build/comm" "$build/kernels" "$build/examples" "$build/docs" -name '*.d' -exec grep -l 'include/zero\.h' {} + | sed 's/\.d$/.o/' | sort
}
objects_rebuilt()
{
    "${make_here[@]}" "$cuda" -n -W include/zero.h all | grep -o -E -- "-o $build/[^ ]*\.o( |\$)" | sed 's/^-o //; s/ $//' | sort -u
}
claim "a new zero.h rebuilds the objects that include it, and only those" \
    diff <(objects_of_header) <(objects_rebuilt)
claim "more than ten objects include zero.h" test "$(objects_rebuilt | wc -l)" -gt 10
exit $status

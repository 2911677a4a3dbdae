#!/bin/bash
# `make install` gives a tree from which another program builds: DESTDIR and PREFIX are kept apart, pkg-config's answer
# is enough for shared and static linking, find_package for CMake, uninstall takes back every file. And make rebuilds
# what it must and no more.
# Run by tests/run-all; prints "ok: claim" or "FAILED: claim" for each.
# shellcheck disable=SC2317 # functions are called through claim

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# The make that runs this test must not pass its own settings down.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES SANITIZE WERROR V
# Relative, as when it was built: the dependency files name objects that way.
build=$(realpath --relative-to=. "${ZERO_BUILD:-build}")
if [[ $(basename "$build") == sanitize ]]; then
    echo "SKIP: a sanitizer build is not for installing"
    exit 0
fi
make_here=(make --no-print-directory BUILD="$build")
prefix=/opt/x
# shellcheck source=tests/claims.sh
source tests/claims.sh
dest=$scratch/dest

installed_files() { (cd "$dest" && find . ! -type d | sort); }

expected_files()
{
    printf ".$prefix/%s\n" bin/zerotrain include/zero.h lib/libzero.a lib/libzero.so lib/libzero.so.0 \
        "lib/libzero.so.$version" lib/cmake/zero/zero-config.cmake lib/cmake/zero/zero-config-version.cmake \
        lib/pkgconfig/zero.pc | sort
}

# pkg-config's answer for the tree as it lies under DESTDIR.
pkg()
{
    PKG_CONFIG_PATH=$dest$prefix/lib/pkgconfig pkg-config --define-variable=prefix="$dest$prefix" "$@" zero
}

# ---- installed files -----------------------------------------------------------------------------------------------
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
claim "make install" "${make_here[@]}" install DESTDIR="$dest" PREFIX="$prefix"
claim "it installs these files and no others" diff <(expected_files) <(installed_files)
claim "zero.pc names PREFIX, without DESTDIR" grep -qx "prefix=$prefix" "$dest$prefix/lib/pkgconfig/zero.pc"
claim "the soname is libzero.so.0" bash -c "readelf -d '$dest$prefix/lib/libzero.so' | grep -q 'SONAME.*\[libzero.so.0\]'"
version_is() { [[ $("$@") == *"$version"* ]] && [[ $(pkg --modversion) == "$version" ]]; }
claim "the installed zerotrain and zero.pc have version $version" version_is "$dest$prefix/bin/zerotrain" --version

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
claim "it runs with the shared library" uses_shared "$scratch/version"
claim "it prints version $version" prints_version "$scratch/version"
claim "examples/linear.c links with it" compile "" examples/linear.c "$scratch/linear"
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
    claim "examples/linear.cu links with it" compile_cuda examples/linear.cu "$scratch/linear_cuda"
    claim "examples/linear.cu ends with libzero's line where there is no GPU" fails_for_a_gpu "$scratch/linear_cuda"
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
    not() { ! "$@"; }
    claim "a CMake project builds it with find_package(zero)" cmake_project "$version"
    claim "it runs with the shared library" uses_shared "$scratch/cmake/build/linear"
    claim "it runs on 2 ranks" mpirun_2 "$scratch/cmake/build/linear"
    claim "find_package refuses a version that is not there" not cmake_project 99.0
else
    echo "SKIP: find_package: cmake is not installed"
fi

# Where the archive lies alone, -lzero means it, and pkg-config --static must name all that it needs.
rm -f "$dest$prefix"/lib/libzero.so*
claim "examples/linear.c links with pkg-config --static --libs" compile --static examples/linear.c "$scratch/static"
LD_LIBRARY_PATH=
claim "the static one runs alone" timeout 60 "$scratch/static"

"${make_here[@]}" install DESTDIR="$dest" PREFIX="$prefix" >/dev/null
claim "make uninstall" "${make_here[@]}" uninstall DESTDIR="$dest" PREFIX="$prefix"
claim "it leaves no file" diff /dev/null <(installed_files)

# ---- rebuilding ----------------------------------------------------------------------------------------------------
claim "a second make has nothing to do" "${make_here[@]}" --question all

# Objects whose sources include zero.h, by the compiler's own word, and those that make would build
# again if zero.h were new (-W pretends that it is, so nothing is touched).
objects_of_header()
{
    find "$build/src" "$build/comm" "$build/kernels" "$build/examples" -name '*.d' -exec grep -l 'src/zero\.h' {} + | sed 's/\.d$/.o/' | sort
}
objects_rebuilt()
{
    "${make_here[@]}" -n -W src/zero.h all | grep -o -E -- "-o $build/[^ ]*\.o( |\$)" | sed 's/^-o //; s/ $//' | sort -u
}
claim "a new zero.h rebuilds the objects that include it, and only those" \
    diff <(objects_of_header) <(objects_rebuilt)
claim "they are more than ten" test "$(objects_rebuilt | wc -l)" -gt 10
exit $status

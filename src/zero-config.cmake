# What find_package(zero) reads, installed in LIBDIR/cmake/zero: the target zero::zero, libzero.so with its header.
# It finds the two relative to itself, so the tree may be moved; `make install` fills in how.
get_filename_component(_zero_here "${CMAKE_CURRENT_LIST_DIR}" REALPATH) # /lib may be a link to /usr/lib
get_filename_component(_zero_libdir "${_zero_here}/@LIBDIR@" ABSOLUTE)
get_filename_component(_zero_includedir "${_zero_here}/@INCLUDEDIR@" ABSOLUTE)
if(NOT TARGET zero::zero)
    add_library(zero::zero SHARED IMPORTED)
    set_target_properties(zero::zero PROPERTIES
        IMPORTED_LOCATION "${_zero_libdir}/libzero.so"
        INTERFACE_INCLUDE_DIRECTORIES "${_zero_includedir}")
endif()
unset(_zero_here)
unset(_zero_libdir)
unset(_zero_includedir)

# What find_package(zero) reads, installed in PREFIX/lib/cmake/zero: the target zero::zero, libzero.so with its header.
# It finds the two beside itself, so the tree may be moved.
get_filename_component(_zero_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET zero::zero)
    add_library(zero::zero SHARED IMPORTED)
    set_target_properties(zero::zero PROPERTIES
        IMPORTED_LOCATION "${_zero_prefix}/lib/libzero.so"
        INTERFACE_INCLUDE_DIRECTORIES "${_zero_prefix}/include")
endif()
unset(_zero_prefix)

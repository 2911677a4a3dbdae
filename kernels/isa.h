/* isa.h - builds one CPU kernel source for several instruction sets.
 *
 * The Makefile compiles each CPU kernel file once per instruction set, with ZERO_ISA_NAME set to scalar, avx2 or
 * avx512. ZERO_ISA(f) gives each build's functions names of their own. shard_cpu.c and kernels_cpu.c choose among the
 * builds' tables at run time. The code is plain C whose loops the compiler vectorizes. fmaf and sqrtf are IEEE
 * operations and contraction is off, so every build gives the same bits.
 */
#ifndef ZERO_ISA_H
#define ZERO_ISA_H

#define ZERO_ISA_PASTE_(name, isa) name##_##isa
#define ZERO_ISA_PASTE(name, isa) ZERO_ISA_PASTE_(name, isa)
#define ZERO_ISA(name) ZERO_ISA_PASTE(name, ZERO_ISA_NAME)

#endif

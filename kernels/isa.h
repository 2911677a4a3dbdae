/* isa.h - one CPU kernel source, several instruction sets.
 *
 * The Makefile compiles each CPU kernel file once per instruction set, with ZERO_ISA_NAME set to scalar, avx2 or
 * avx512, and ZERO_ISA(f) gives each build's functions a name of their own; shard_cpu.c and model_cpu.c pick a table at
 * run time. The code is plain C whose loops the compiler vectorizes; fmaf and sqrtf are IEEE operations, contraction is
 * off, so every build gives the same bits.
 */
#ifndef ZERO_ISA_H
#define ZERO_ISA_H

#define ZERO_ISA_PASTE_(name, isa) name##_##isa
#define ZERO_ISA_PASTE(name, isa) ZERO_ISA_PASTE_(name, isa)
#define ZERO_ISA(name) ZERO_ISA_PASTE(name, ZERO_ISA_NAME)

#endif

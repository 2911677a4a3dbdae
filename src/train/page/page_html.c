/* page_html.c - page.html as a string. The assembler reads it, from the folder that make runs in. */
#include "train/page/page.h"

/* A string, which ends with a zero. */
__asm__(".pushsection .rodata\n"
        ".globl page_html\n"
        ".hidden page_html\n"
        "page_html:\n"
        ".incbin \"src/train/page/page.html\"\n"
        ".byte 0\n"
        ".popsection\n");

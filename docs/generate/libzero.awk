# libzero.awk - prints zero.h as the man page libzero(3): awk -v version=0.1.0 -f libzero.awk zero.h
#
# The page is the header's own text: its first comment is the description, a "---- Title ----" line begins a section,
# other comments are paragraphs, and declarations are code.

function troff(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/)
        text = "\\&" text
    return text
}
# Begins a paragraph, unless a section has just begun.
function flush_paragraph() { if (paragraph && !section_begins) print ".PP"; paragraph = section_begins = 0 }
# A declaration follows its comment without a blank line, so that one sees which is whose.
function begin_literal() { if (!literal) { paragraph = !commented; flush_paragraph(); print ".nf" } literal = 1; commented = 0 }
function end_literal() { if (literal) print ".fi"; literal = 0; paragraph = 1 }

BEGIN {
    print ".TH LIBZERO 3 \"\" \"libzero " version "\" \"Library Functions\""
    print ".SH NAME\nlibzero \\- ZeRO stages 0\\-3 (FSDP) for C training codes"
    print ".SH SYNOPSIS\n.nf\n#include <zero.h>\n\ncc ... $(pkg\\-config \\-\\-cflags \\-\\-libs zero)\n.fi\n.SH DESCRIPTION"
    section_begins = 1
}
# Skip what only the preprocessor needs.
/^#(ifndef|ifdef|if|else|endif|include)/ || /^extern "C"/ || /^#define ZERO_(H|API)/ { skipped = 1; next }
skipped && /^}$/ { skipped = 0; next }
{ skipped = 0 }
/^ \*\/$/ && in_comment { in_comment = 0; next }
/^\/\* ---- / {
    end_literal()
    title = $0
    sub(/^\/\* -+ */, "", title)
    sub(/ *-+( \*\/)?$/, "", title)
    print ".SH " toupper(troff(title))
    section_begins = 1
    in_comment = $0 !~ /\*\/$/
    next
}
/^\/\*/ {
    end_literal()
    in_comment = 1
}
in_comment {
    text = $0
    closes = text ~ /\*\/$/
    sub(/^\/\* ?/, "", text)
    sub(/^ \* ?/, "", text)
    sub(/ ?\*\/$/, "", text)
    if (text ~ /^    /)
        begin_literal()
    else if (text != "")
        if (literal) end_literal()
    if (text == "" && !literal)
        paragraph = 1
    else if (text != "" || !closes) {
        if (!literal) flush_paragraph()
        print troff(text)
    }
    if (closes) { in_comment = 0; end_literal(); commented = 1 }
    next
}
/^$/ { end_literal(); commented = 0; next }
{
    begin_literal()
    sub(/^ZERO_API /, "")
    sub(/ +\\$/, " \\")
    print troff($0)
}
END { end_literal(); print ".SH SEE ALSO\n.BR zerotrain (1)" }

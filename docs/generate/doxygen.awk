# doxygen.awk - turns zero.h's plain comments into doxygen's: awk -f doxygen.awk zero.h
#
# The first comment becomes the page of the file, each "---- Title ----" a topic with that comment's text. Other comments
# become those of the declaration below them or before them on the line. Indented lines of a comment are kept as they
# are.

function set_verbatim(wanted)
{
    if (wanted != verbatim)
        print wanted ? "@verbatim" : "@endverbatim"
    verbatim = wanted
}
# Prints a line of a comment without its star, which doxygen would show in verbatim text. A backslash before a letter
# would be a command.
function print_comment(text)
{
    set_verbatim(text ~ /^ \*     /)
    if (text !~ /^ *\*\/$/)
        sub(/^ *\* ?/, "", text)
    if (!verbatim)
        gsub(/\\/, "&&", text)
    print text
}
function end_topic()
{
    if (in_topic)
        print "/** @} */"
    in_topic = 0
}

/^#ifdef __cplusplus/ { end_topic() }
/^\/\* ---- / {
    end_topic()
    title = $0
    sub(/^\/\* -+ */, "", title)
    sub(/ *-+$/, "", title)
    topic = tolower(title)
    gsub(/ /, "_", topic)
    print "/** @defgroup " topic " " title
    in_topic = in_comment = topic_begins = 1
    next
}
in_comment || /^ *\/\*/ {
    if (!in_comment)
        sub(/\/\*/, NR == 1 ? "/** @file\n" : "/**")
    in_comment = $0 !~ /\*\/$/
    print_comment($0)
    if (!in_comment && topic_begins)
        print "/** @{ */"
    topic_begins = topic_begins && in_comment
    next
}
# A comment behind a declaration.
/[^ ] +\/\* / { sub(/\/\* /, "/**< ") }
{ print }

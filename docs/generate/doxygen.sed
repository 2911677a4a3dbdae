# Turns zero.h's plain comments into doxygen's: those above a declaration, and those after it on the same line.
s#^/\* ----#/\* ----#
t
s#^\(/\*\)\( [^-]\)#/**\2#
s#^\( *[^ /].*[;,{] \)/\* \(.*\*/\)$#\1/**< \2#
s#^\( *[^ /*].*[;,{] \)/\* \(.*[^/]\)$#\1/**< \2#
# Doxygen would take a backslash before a letter for a command.
s#\\\([a-z]\)#\\\\\1#g

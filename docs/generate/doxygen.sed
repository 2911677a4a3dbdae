# Makes zero.h's plain comments doxygen's: one above a declaration, and one behind it on the same line.
s#^/\* ----#/\* ----#
t
s#^\(/\*\)\( [^-]\)#/**\2#
s#^\( *[^ /].*[;,{] \)/\* \(.*\*/\)$#\1/**< \2#
s#^\( *[^ /*].*[;,{] \)/\* \(.*[^/]\)$#\1/**< \2#
# A backslash before a letter would be a command of doxygen's.
s#\\\([a-z]\)#\\\\\1#g

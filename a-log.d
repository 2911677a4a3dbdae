log.o: src/base/log.c src/base/log.h include/zero.h
src/base/log.h:
include/zero.h:

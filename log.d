log.o: src/zero/log.c src/zero/log.h src/zero.h
src/zero/log.h:
src/zero.h:

# make spank: build the optional SPANK plugin against the installed Slurm headers (Debian: libslurm-dev). It works with
# the major.minor release of Slurm that it was built for. Always rebuilt, because PREFIX is compiled in.
SPANK_SOURCES := $(addprefix packaging/spank/,warmstart.c options.c view.c trusted.c mount.c shown.c)
SPANK_CFLAGS  := -std=gnu11 -O2 -g -Wall -Wextra -Werror -Wconversion -Wshadow -fPIC -fvisibility=hidden
SPANK_CFLAGS  += -ffile-prefix-map=$(CURDIR)=. -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2

.PHONY: spank
spank: ## the optional SPANK plugin, build/spank/warmstart.so (docs/guides/pyxis.md)
	@mkdir -p build/spank
	$(CC) $(SPANK_CFLAGS) -DWARMSTART_RUN='"$(RUN)"' -shared -Wl,-z,relro,-z,now \
		-o build/spank/warmstart.so $(SPANK_SOURCES)

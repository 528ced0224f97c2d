# The same commands as in README and CI; `just` lists them.

# list the commands
default:
    @just --list

# fetch Debian's kernel, boot it, show what it found, report
demo *FLAGS:
    ./tools/demo {{FLAGS}}

# every check of the gate
test:
    ./tools/test

# the speed of guests against the host's and QEMU's
bench *FLAGS:
    cargo run --locked --release --bin satori -- bench {{FLAGS}}

# coverage-guided fuzzing of everything that reads foreign bytes, an hour each
fuzz *FLAGS:
    ./tools/fuzz {{FLAGS}}

# a Debian userland that checks itself
userland *FLAGS:
    ./tools/userland {{FLAGS}}

# ten million instructions against the processor, the fuzzers, many boots of every configuration
soak *FLAGS:
    ./tools/soak {{FLAGS}}

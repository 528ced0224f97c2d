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

# many boots of every configuration
soak *FLAGS:
    ./tools/soak {{FLAGS}}

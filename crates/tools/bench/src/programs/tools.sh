
# What rows of devices work on: a guest's own, or what the host has in their place.
if [ $$ = 1 ]; then
    disk=${word[disk]} qcow2=${word[qcow2]} folder=${word[folder]} direct=1
else
    disk=/tmp/rows/disk.img qcow2=$disk folder=/tmp/rows/folder direct=0
fi
set -o pipefail
host=${word[host]%:*} port=${word[host]#*:}
# The folder's files may belong to somebody else in a guest.
export GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'

devices() {
    local module
    for module in /modules/*; do
        busybox insmod "$module"
    done
    busybox mkdir -p "$folder"
    busybox mount -t virtiofs bench "$folder" 2>/dev/null ||
        busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 bench "$folder"
    busybox ifconfig eth0 10.0.2.15 netmask 255.255.255.0
}
[ $$ != 1 ] || devices

# A guest forgets what it knows of the folder, as one that has just begun does.
fresh() { [ $$ != 1 ] || echo 2 >/proc/sys/vm/drop_caches; }

# Nanoseconds of a request of fio's: how, KiB, depth, engine, file, other words.
requests() {
    local out field
    out=$(fio --name=row --rw="$1" --bs="$2k" --iodepth="$3" --ioengine="$4" --filename="$5" --direct=$direct --invalidate=0 \
        --size=128M --time_based --runtime="${word[budget]}ms" --output-format=terse --terse-version=3 "${@:6}") || return
    IFS=';' read -ra field <<<"$out"
    # The fifth is its error; KiB and milliseconds of reads are the sixth and ninth, of writes the 47th and 50th.
    [ "${field[4]}" = 0 ] && own=$(((field[8] + field[49]) * 1000000 * $2 / (field[5] + field[46])))
}

# Nanoseconds of 1 MiB of iperf3's.
stream() {
    iperf3 -c "$host" -p "$port" -J -n 64M "$@" >iperf || return
    own=$(mawk -F'[:,]' '/"sum_received"/ { sum = 1 } sum && /"bits_per_second"/ { printf "%.0f", 8388608e9 / $2; exit }' iperf)
    [ -n "$own" ]
}

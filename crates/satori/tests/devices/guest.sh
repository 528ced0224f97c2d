#!/bin/sh
# Init of the tests of devices: `satori.do=NAME` on the command line says what to do. What it writes to a port is what
# the test reads.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
dmesg -n 3
doing=$(sed -n 's/.*satori\.do=\([a-z]*\).*/\1/p' /proc/cmdline)

# A port's device, by its name.
port() {
    for each in /sys/class/virtio-ports/*; do
        if [ "$(cat "$each/name" 2>/dev/null)" = "$1" ]; then echo "/dev/${each##*/}"; return; fi
    done
    echo "no port $1" >&2
    echo /dev/null
}

case $doing in
ports)
    wc -c <"$(port in)" >"$(port count)"
    # More than all buffers hold, and the last bytes just before the power goes.
    (seq 1 200000; echo end) >"$(port out)"
    grep -c virtio /proc/interrupts >"$(port facts)"
    ;;
share)
    mkdir /mnt
    mount -t virtiofs files /mnt || echo BAD mount
    cat /mnt/hello
    md5sum </mnt/large
    umount /mnt
    # The driver goes away and comes back.
    device=$(basename "$(readlink -f /sys/bus/virtio/drivers/virtiofs/virtio*)")
    echo "$device" >/sys/bus/virtio/drivers/virtiofs/unbind
    echo "$device" >/sys/bus/virtio/drivers/virtiofs/bind
    mount -t virtiofs files /mnt || echo BAD mount again
    cat /mnt/hello
    ;;
unplugged)
    # Removed, and found again with other addresses.
    out=$(port out)
    echo one >"$out"
    device=$(readlink -f /sys/class/virtio-ports/*/device | head -1 | sed 's,/virtio[0-9]*/*.*,,')
    cat "$device/resource" | head -1
    echo 1 >"$device/remove"
    echo 1 >/sys/bus/pci/rescan
    sleep 1
    echo two >"$(port out)"
    ;;
esac
echo "done"
poweroff -f

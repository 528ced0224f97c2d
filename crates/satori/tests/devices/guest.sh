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
disks)
    for each in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio-rng; do
        insmod /bin/$each.ko || echo "BAD module $each"
    done
    cd /sys/block
    echo "serial $(cat vda/serial) sectors $(cat vda/size) readonly $(cat vdb/ro)"
    yes acknowledged | head -c 3000000 | dd of=/dev/vda bs=4096 seek=100 conv=fsync 2>/dev/null
    # Past the host's and the guest's own cache, in pieces of every size.
    dd if=/dev/vda iflag=direct bs=512 skip=800 count=100 2>/dev/null | md5sum
    dd if=/dev/vda iflag=direct bs=1M 2>/dev/null | md5sum
    dd if=/dev/zero of=/dev/vda oflag=direct bs=64k seek=64 count=16 2>/dev/null
    blkdiscard -o 8388608 -l 1048576 /dev/vda || echo BAD discard
    echo lost >/dev/vdc && sync && head -c 5 /dev/vdc
    echo x 2>/dev/null >/dev/vdb && sync && echo BAD write
    echo "entropy $(cat /sys/class/misc/hw_random/rng_current) $(head -c 64 /dev/hwrng | wc -c)"
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

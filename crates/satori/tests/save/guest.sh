#!/bin/sh
# Init of the machine with disks: writes, reads back past every cache, and takes random bytes, while one of two
# processors is offline.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
dmesg -n 3
for each in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio-rng; do
    insmod /bin/$each.ko || echo "BAD module $each"
done
echo "serial $(cat /sys/block/vda/serial) readonly $(cat /sys/block/vdb/ro)"
echo 0 >/sys/devices/system/cpu/cpu1/online || echo "BAD the second processor stays"
for round in 1 2 3; do
    seq $round 40000 | dd of=/dev/vda bs=4096 seek=$((round * 50)) conv=fsync 2>/dev/null
    dd if=/dev/vda iflag=direct bs=64k 2>/dev/null | md5sum
    dd if=/dev/vdb iflag=direct bs=4k count=100 2>/dev/null | md5sum
    head -c 64 /dev/hwrng | md5sum
done
echo 1 >/sys/devices/system/cpu/cpu1/online || echo "BAD the second processor does not come back"
grep -c virtio /proc/interrupts
echo done
poweroff -f

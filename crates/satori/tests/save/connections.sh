#!/bin/sh
# Init of the machine with a network card and sockets to the host. The words in capitals are put in.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
dmesg -n 3
for each in MODULES; do
    insmod /bin/$each || echo "BAD module $each"
done
ifconfig lo 127.0.0.1
ifconfig eth0 10.0.2.15 netmask 255.255.255.0
/bin/connections PORT
echo address $(ifconfig eth0 | grep -o 'inet addr:10.0.2.15')
echo done
poweroff -f

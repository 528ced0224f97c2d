#!/bin/busybox sh
# The init that 'satori initrd' makes: mounts, loads the modules in their order, then does what --run
# says or gives a shell, and powers off.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TERM="${TERM:-linux}"
/bin/busybox --install -s 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /run
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
# The size of the terminal that the console is on, as systemd has it.
for word in $(cat /proc/cmdline); do
    case $word in
    systemd.tty.rows.ttyS0=*) stty rows "${word##*=}" ;;
    systemd.tty.columns.ttyS0=*) stty cols "${word##*=}" ;;
    esac
done
if [ -f /lib/modules/load ]; then
    while read -r module; do
        insmod $module || echo "satori initrd: insmod $module failed"
    done </lib/modules/load
fi
if [ -f /etc/satori-run ]; then
    sh /etc/satori-run
else
    setsid cttyhack sh
fi
poweroff -f

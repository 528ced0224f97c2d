#!/bin/sh
# The demo's init: shows what the guest found, then powers off or gives a shell.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TERM=linux
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
boot=$(cut -d' ' -f1 /proc/uptime)
# Quiet from here, so that no late message of the kernel falls into the table.
dmesg -n 1

row() { printf '  %-14s %s\n' "$1" "${2:-unknown}"; }
echo
echo 'What this guest found:'
row kernel "$(uname -srm)"
row hypervisor "$(dmesg | sed -n 's/.*\(Hypervisor detected: .*\)/\1/p' | head -n 1 | grep . || echo none)"
row clocksource "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
row processors "$(grep -c '^processor' /proc/cpuinfo) x $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
row memory "$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) / 1024)) MiB"
row 'boot time' "$boot s by the guest's clock, from the kernel's first instruction to init"
echo

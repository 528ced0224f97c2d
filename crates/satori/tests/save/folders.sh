# The command that is saved. $1 is a folder that may be changed; one by 9P is mounted here. Its root's changes are in memory.
set -e
rw=$1 cow=/tmp/changed.$$ shared=/tmp/mounted.$$
mkdir $cow $shared
mount -t 9p -o trans=virtio,version=9p2000.L shared $shared
exec 3>$cow/log 4>$rw/log 5>$shared/log 6<$rw/input
n=0
while read -r line <&6; do
    n=$((n + 1))
    for each in $cow $rw $shared; do
        mkdir -p $each/d$((n % 5))
        echo "$n $line" >$each/d$((n % 5))/f$((n % 11))
        [ "$(cat $each/d$((n % 5))/f$((n % 11)))" = "$n $line" ] || echo "BAD $each $n"
        [ $((n % 7)) != 0 ] || mv $each/d$((n % 5))/f$((n % 11)) $each/moved$((n % 3))
    done
    for log in 3 4 5; do
        echo "$n $line" >&$log
    done
    [ $((n % 20)) != 0 ] || echo "$n lines"
done
for each in $cow $rw $shared; do
    cd $each
    find . -type f | sort | xargs cksum
done
echo done

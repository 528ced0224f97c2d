# The command that is saved: it writes to the disk $2 and reads it, and is connected to port $1 of the host, anew where it was reset.
port=$1 disk=$2
until [ -b $disk ]; do
    sleep 0.1
done
hello() {
    timeout 60 bash -c 'exec 3<>/dev/tcp/10.0.2.2/'$port' && read -r line <&3 && echo $line' 2>/dev/null
}
n=0
while [ $n -lt 40 ]; do
    n=$((n + 1))
    text=$(printf '%08d' $n)
    printf $text | dd of=$disk seek=$n bs=4096 conv=fsync,notrunc 2>/dev/null
    got=$(dd if=$disk skip=$n bs=4096 count=1 iflag=direct 2>/dev/null | head -c 8)
    [ "$got" = $text ] || echo "BAD disk: $got for $text"
    until [ "$(hello)" = hello ]; do
        sleep 0.1
    done
    [ $((n % 10)) != 0 ] || echo "$n times"
done
cksum <$disk
echo done

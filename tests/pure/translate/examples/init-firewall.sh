#!/bin/bash
# The firewall of a development container, in the form that such scripts have.
set -euo pipefail

iptables -F
iptables -t nat -F
ipset destroy allowed-domains 2>/dev/null || true

# DNS, SSH and loopback before anything is restricted
iptables -A OUTPUT -p udp --dport 53 -j ACCEPT
iptables -A INPUT -p udp --sport 53 -j ACCEPT
iptables -A OUTPUT -p tcp --dport 22 -j ACCEPT
iptables -A INPUT -i lo -j ACCEPT
iptables -A OUTPUT -o lo -j ACCEPT

ipset create allowed-domains hash:net
ipset add allowed-domains 192.0.2.0/24

gh_ranges=$(curl -s https://api.github.com/meta)
while read -r cidr; do
    ipset add allowed-domains "$cidr"
done < <(echo "$gh_ranges" | jq -r '(.web + .api + .git)[]')

for domain in \
    "api.example.com" \
    "cdn.example.com" \
    "telemetry.example.org"; do
    ips=$(dig +short A "$domain")
    while read -r ip; do
        ipset add allowed-domains "$ip"
    done < <(echo "$ips")
done

HOST_NETWORK=$(ip route | awk '/default/ {print $3}' | sed "s/\.[0-9]*$/.0\/24/")
iptables -A INPUT -s "$HOST_NETWORK" -j ACCEPT
iptables -A OUTPUT -d "$HOST_NETWORK" -j ACCEPT

iptables -P OUTPUT DROP
iptables -A OUTPUT -m state --state ESTABLISHED,RELATED -j ACCEPT
iptables -A OUTPUT -m set --match-set allowed-domains dst -j ACCEPT
iptables -A OUTPUT -j REJECT --reject-with icmp-admin-prohibited

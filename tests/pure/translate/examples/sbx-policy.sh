# Docker sandboxes: what this machine's sandboxes may reach
sbx policy init deny-all
sbx policy allow network "api.example.com,**.example.org:443"
sbx policy allow network '*.example.net'
sbx policy allow network 198.51.100.0/24
sbx policy allow network --protocol udp time.example.com:123
sbx policy allow network git.example.com --method GET,HEAD --path '/repos/**'
sbx policy deny network ads.example.org

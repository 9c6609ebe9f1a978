"""How to reach an API server and as whom: kubeconfig files, service accounts, credential plugins, TLS, proxies."""

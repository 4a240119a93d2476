"""The gateway: the one way to every model. Keys stay here, money is counted here, and each call goes on the record."""
